"""Judges manifests before they are submitted: offline, and stricter than the API server.

What may not enter: torch, a cluster, the network. Start reading at `manifests.py`: it follows the
server's order of steps (`decode.py` for core kinds, `structural.py` and `cel.py` for
custom resources) and then asks the rules of `stricter/`.
"""

from __future__ import annotations

from ridgeline.launch.check.documents import Document, read_files, read_text
from ridgeline.launch.check.manifests import check_files, check_manifests
from ridgeline.launch.check.verdict import ManifestProblem, ManifestReport, ManifestVerdict

__all__ = [
    "Document",
    "ManifestProblem",
    "ManifestReport",
    "ManifestVerdict",
    "check_files",
    "check_manifests",
    "read_files",
    "read_text",
]
