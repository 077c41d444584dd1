"""Batches that a run leaves out, because a step on them was rolled back. No torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ridgeline.records.appended import AppendedFile, read_journal

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
    return read_journal(folder / FILE, msgspec.json.Decoder(SkippedBatch).decode)


def skip(folder: Path, batch: SkippedBatch) -> None:
    """Leave a batch out from now on; on disk on return."""
    file = AppendedFile(folder / FILE)
    try:
        file.append(msgspec.json.encode(batch), sync=True)
    finally:
        file.close()
