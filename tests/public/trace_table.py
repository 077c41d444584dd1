"""What `traces.toml` says: public profiler traces, what bounds each, and exact figures of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

TABLE = Path(__file__).with_name("traces.toml")
FOLDER_VARIABLE = "RIDGELINE_PUBLIC_TRACES"
"""Environment variable that names the folder of the files."""
CAUSES = frozenset({
    "allocator-bound", "communication-bound", "compute-bound", "copy-bound", "cpu-only",
    "dependency-wait", "device-stall", "empty-window", "gpu-bound", "hardly-any-gpu-work",
    "host-bound", "host-bound-start-up", "input-bound", "launch-bound", "memory-bound",
    "rank-skew", "sync-bound", "uneven-kernels", "unexplained-idle",
})  # fmt: skip
"""Causes that may come first in a verdict."""


class PublicTrace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One public trace, or the traces of all ranks of one job, with its label."""

    name: str
    repository: str
    """Address of the repository on GitHub."""
    commit: str
    files: dict[str, str]
    """Path in the repository at that commit → SHA-256 of the file; several are ranks."""
    device: str
    what: str
    """What ran."""
    causes: tuple[str, ...] = ()
    """Causes that may come first: one, or those over which engineers would argue."""
    refused: bool = False
    """Another format: exit code 2 with one line is right, and nothing else without `causes`."""
    confidence_at_most: float = 1.0
    """More is too much, where the file does not hold what would be needed to know."""
    window_ms: float | None = None
    """From the start of the first kernel, copy or fill to the end of the last."""
    busy_ms: float | None = None
    """Time in it with at least one of them on the GPU."""
    why: str
    """The evidence, with figures."""

    @property
    def slug(self) -> str:
        """`owner/name`."""
        return self.repository.removeprefix("https://github.com/")

    def addresses(self) -> dict[str, str]:
        """Path below the folder of files → where it can be downloaded."""
        places = (f"{self.slug}/{self.commit}/{path}" for path in self.files)
        return {place: f"https://raw.githubusercontent.com/{place}" for place in places}

    def located(self, folder: Path) -> list[Path]:
        """Where its files lie below `folder`, there or not."""
        return [folder / place for place in self.addresses()]

    def changed(self, folder: Path) -> list[Path]:
        """Those of its files that are there but are not what was labelled."""
        return [
            path
            for path, digest in zip(self.located(folder), self.files.values(), strict=True)
            if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() != digest
        ]


class TraceTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    trace: tuple[PublicTrace, ...]


def read_trace_table() -> TraceTable:
    return msgspec.toml.decode(TABLE.read_bytes(), type=TraceTable)
