"""Batches that a run leaves out, because a step on them was rolled back. No torch."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

FILE = "skipped.jsonl"


class SkippedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file."""

    step: int
    """Optimizer steps that were done before it."""
    samples: int
    """The first sample of the batch, in the order of the run."""
    why: str


def skipped_batches(folder: Path) -> list[SkippedBatch]:
    """In the order in which the run met them."""
    path = folder / FILE
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=SkippedBatch) for line in lines if line.strip()]


def skip(folder: Path, batch: SkippedBatch) -> None:
    """Leave a batch out from now on; on disk on return."""
    with (folder / FILE).open("ab") as file:
        file.write(msgspec.json.encode(batch) + b"\n")
        file.flush()
        os.fsync(file.fileno())
