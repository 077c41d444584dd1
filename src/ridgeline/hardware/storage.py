"""What a probe has measured of the disk below a folder, and the file that remembers it.

Torch-free; `measure/storage.py` measures. One file per file system in the user's cache folder: the
number of its device names it, so that all folders of one disk share what was measured once.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.hardware.ceilings import cache_folder
from ridgeline.records.store import read_record, write_record


class StorageRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rates at which files of one file system are read and written."""

    folder: str
    """Where the temporary file lay."""
    file_bytes: int
    cache: str
    """`circumvented` (direct reads), `emptied` (the file's pages were dropped first) or `in the
    way`: then memory was measured, and the disk is slower."""
    write_bytes_per_second: float
    """One writer, blocks of `SEQUENTIAL_BYTES`, until the file was on the disk (fsync)."""
    sequential_bytes_per_second: float
    """One reader, blocks of `SEQUENTIAL_BYTES`."""
    random_bytes_per_second: float
    """`RANDOM_READERS` readers at random places, as the workers of a loader read samples."""
    random_read_bytes: int
    random_readers: int
    small_read_seconds: float
    """One reader, 4 KiB at a random place: what a read takes before its first byte."""
    date: str
    """The date in ISO 8601, UTC."""


def save_storage(rates: StorageRates) -> Path:
    """Remember what was measured of a folder's file system; returns the file."""
    path = _path(Path(rates.folder))
    write_record(path, rates)
    return path


def cached_storage(folder: Path) -> StorageRates | None:
    """What an earlier probe left for the file system of a folder; None: nothing that is read."""
    try:
        path = _path(folder)
        return read_record(path, StorageRates, ours=True) if path.exists() else None
    except (InputError, OSError):
        return None


def _path(folder: Path) -> Path:
    device = folder.stat().st_dev
    return cache_folder() / f"storage-{os.major(device)}-{os.minor(device)}.json"
