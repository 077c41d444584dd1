"""Profiles of JAX and other XLA programs (`*.xplane.pb`) as traces: one `Trace` per device.

An XSpace (`planes.py`, `rows.py`) has a plane per device and one for the host. On a GPU's plane the
lines called `Stream #…` are its work, on a TPU's `XLA Ops` and `Async XLA Ops`; others repeat them
for a viewer (modules, steps, scopes). A call on the host has the correlation of the work that it
launched; what else the host's plane holds are ranges. `ridgeline/trace/per_gpu.py` divides the file
among devices.

The JSON beside such a file (`perfetto_trace.json.gz`, `trace.json.gz`) holds less of it, and is
refused with this one's name.
"""

from __future__ import annotations

from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.trace.columns import Trace
from ridgeline.trace.file_text import GZIP_MAGIC, text_pieces
from ridgeline.trace.formats import FileFormat

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
LARGEST_BYTES = 2**30
_RANKS = "ranks are the numbers of devices: the profile does not say the process's"


def read_xplane(path: Path) -> list[Trace]:
    """One trace per device of a profile, lowest number first.

    Raises:
        InputError: it is damaged, too large, or nothing ran on a device or the host in it.
    """
    # Every reader of traces looks at formats, and few read this one.
    from ridgeline.trace.formats.xplane.rows import rows_of
    from ridgeline.trace.per_gpu import traces_per_gpu

    warnings: list[str] = []
    content = bytearray()
    for piece in text_pieces(path, warnings):
        content += piece
        if len(content) > LARGEST_BYTES:
            raise InputError(f"{path}: more than {LARGEST_BYTES >> 30} GiB; profile fewer steps")
    try:
        traces = traces_per_gpu(path, rows_of(bytes(content)), ranks=_RANKS)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path}: not a whole XSpace of XLA's profiler ({error})") from None
    if not traces:
        raise InputError(f"{path}: nothing ran on a device or the host in it; profile again")
    return traces


def _looks_like_xplane(path: Path, start: bytes) -> bool:
    return path.name.endswith(SUFFIXES) and start.startswith((b"\x0a", GZIP_MAGIC))


FORMAT = FileFormat(
    name="XPlane",
    suffixes=SUFFIXES,
    sniff=_looks_like_xplane,
    read=lambda path, details: read_xplane(path),  # noqa: ARG005 - it has neither shapes nor stacks
)
