"""Kineto's JSON (Chrome trace format), plain or packed, as columns: `read_kineto(path)`.

Format: what torch.profiler's `export_chrome_trace` writes (pytorch/kineto,
libkineto/src/output_json.cpp) and its older forms: categories with a capital letter and whole
microseconds (torch 1.8), `args` without shapes, stacks or correlations, a bare array of events.

How: the text is streamed (and unpacked) in pieces of 512 KiB, each cut at an event's border
(`text.py`), decoded by msgspec into small typed structs that are chosen by category
(`events.py`), and poured into numpy columns (`columns.py`). Only columns are kept, so the peak is a
fraction of the file. A file that ends early or goes on after its end is read as far as it goes,
with a warning. `reading.py` is the loop; `document.py` reads what stands around the events.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ridgeline.records.input_file import without_collection
from ridgeline.trace.columns import Trace
from ridgeline.trace.file_text import first_text
from ridgeline.trace.formats import FileFormat
from ridgeline.trace.formats.kineto.reading import KinetoReading

LARGE_HEADER_BYTES = 2**16
"""A text with this much before its first event may still be a trace."""


def read_kineto(
    path: Path, *, details: bool = False, pieces: Iterator[bytes] | None = None
) -> list[Trace]:
    """Read the ranks of a Kineto file; `details` adds shapes, call stacks and sequence numbers.

    `pieces` is its text where that is a part of the file.

    Raises:
        InputError: the file is not there, or is no trace of torch.profiler.
    """
    reading = KinetoReading.of(path, details=details)
    with without_collection():
        reading.run(pieces)
        return reading.traces()


def _looks_like_kineto(path: Path, start: bytes) -> bool:  # noqa: ARG001 - it may be packed
    text = first_text(path)
    return b'"traceEvents"' in text or b'"ph"' in text or len(text) >= LARGE_HEADER_BYTES


FORMAT = FileFormat(
    name="Kineto",
    suffixes=(".json", ".json.gz"),
    sniff=_looks_like_kineto,
    read=lambda path, details: read_kineto(path, details=details),
    last_resort=True,
)
