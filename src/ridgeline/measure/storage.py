"""Measure the disk below a folder: a temporary file is written, read in order and at random places.

Reads and writes go past the system's page cache (O_DIRECT) where the file system permits it; else
the file's pages are dropped before each pass of reads, and where neither works the answer says that
the cache was in the way. What a disk's own controller keeps is part of what is measured.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Self

from ridgeline.errors import InputError, in_words
from ridgeline.hardware.storage import StorageRates

SEQUENTIAL_BYTES = 2**22
RANDOM_BYTES = 2**17
"""About a sample, as the usual JPEG has some 110 KB."""
SMALL_BYTES = 2**12
RANDOM_READERS = 8
FILE_BYTES = 2**28
PASS_SECONDS = 1.0
"""A pass ends after the whole file or after so long."""


def probe_storage(folder: Path) -> StorageRates:
    """Measure the disk below `folder`, in which a temporary file lies meanwhile.

    Raises:
        InputError: The folder is none, cannot be written to, or has no room.
    """
    if not folder.is_dir():
        raise InputError(f"--disk {folder}: no such folder")
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".ridgeline-probe-") as file:
            written = _write(file.name, FILE_BYTES)
            with _Readers(file.name, FILE_BYTES) as readers:
                sequential = readers.in_order(SEQUENTIAL_BYTES)
                at_random, _ = readers.at_random(RANDOM_BYTES, RANDOM_READERS)
                _, small = readers.at_random(SMALL_BYTES, 1)
                cache = readers.cache
    except OSError as error:
        raise InputError(f"--disk {folder}: {in_words(error)}; name another folder") from None
    return StorageRates(
        folder=str(folder.resolve()),
        file_bytes=FILE_BYTES,
        cache=cache,
        write_bytes_per_second=written,
        sequential_bytes_per_second=sequential,
        random_bytes_per_second=at_random,
        random_read_bytes=RANDOM_BYTES,
        random_readers=RANDOM_READERS,
        small_read_seconds=small,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _write(name: str, file_bytes: int) -> float:
    """Bytes per second until all of it is on the disk; no two blocks are alike."""
    with mmap.mmap(-1, SEQUENTIAL_BYTES) as block:  # aligned, as direct writes want it
        block[:] = random.Random(0).randbytes(SEQUENTIAL_BYTES)
        descriptor = _to_write(name, block)
        try:
            started = perf_counter()
            for number in range(max(1, file_bytes // SEQUENTIAL_BYTES)):
                block[:8] = number.to_bytes(8, "little")
                os.write(descriptor, block)
            os.fsync(descriptor)
            return file_bytes / (perf_counter() - started)
        finally:
            os.close(descriptor)


def _to_write(name: str, block: mmap.mmap) -> int:
    """A descriptor past the page cache, where the file system takes the flag and such a write."""
    direct = getattr(os, "O_DIRECT", 0)
    if direct:
        with contextlib.suppress(OSError):
            descriptor = os.open(name, os.O_WRONLY | direct)
            try:
                os.write(descriptor, block)
                os.lseek(descriptor, 0, os.SEEK_SET)
            except OSError:
                os.close(descriptor)
                raise
            return descriptor
    return os.open(name, os.O_WRONLY)


class _Readers:
    """One file, read past the page cache where that is permitted."""

    def __init__(self, name: str, file_bytes: int) -> None:
        self._file_bytes = file_bytes
        self._descriptor, self.cache = _opened(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def in_order(self, block_bytes: int) -> float:
        """Bytes per second of one reader from the beginning on."""
        self._empty_cache()
        places = range(0, self._file_bytes - block_bytes + 1, block_bytes)
        count, seconds = self._read(list(places), block_bytes)
        return count * block_bytes / seconds

    def at_random(self, block_bytes: int, readers: int) -> tuple[float, float]:
        """Bytes per second of all readers, and the seconds of one read."""
        self._empty_cache()
        places = list(range(0, self._file_bytes - block_bytes + 1, block_bytes))
        random.Random(1).shuffle(places)
        shares = [places[first::readers] for first in range(readers)]
        started = perf_counter()
        with ThreadPoolExecutor(readers) as pool:
            done = list(pool.map(lambda share: self._read(share, block_bytes), shares))
        elapsed = perf_counter() - started
        reads = sum(count for count, _ in done)
        return reads * block_bytes / elapsed, sum(seconds for _, seconds in done) / reads

    def _read(self, places: list[int], block_bytes: int) -> tuple[int, float]:
        """Reads that were made until the time was up, one at least, and the seconds they took."""
        started, count = perf_counter(), 0
        with mmap.mmap(-1, block_bytes) as buffer:  # aligned, as direct reads want it
            for place in places:
                os.preadv(self._descriptor, [buffer], place)
                count += 1
                if perf_counter() - started > PASS_SECONDS:
                    break
        return count, perf_counter() - started

    def _empty_cache(self) -> None:
        drop: Callable[[int, int, int, int], None] | None = getattr(os, "posix_fadvise", None)
        if self.cache == "emptied" and drop is not None:
            drop(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _opened(name: str) -> tuple[int, str]:
    """A descriptor, and what becomes of the page cache."""
    direct = getattr(os, "O_DIRECT", 0)
    if direct:
        # Some file systems refuse the flag, some (tmpfs) the first read.
        with contextlib.suppress(OSError):
            descriptor = os.open(name, os.O_RDONLY | direct)
            try:
                with mmap.mmap(-1, SMALL_BYTES) as buffer:
                    os.preadv(descriptor, [buffer], 0)
            except OSError:
                os.close(descriptor)
                raise
            if not _lies_in_memory(name):
                return descriptor, "circumvented"
            os.close(descriptor)
    descriptor = os.open(name, os.O_RDONLY)
    dropped = hasattr(os, "posix_fadvise") and not _lies_in_memory(name)
    return descriptor, "emptied" if dropped else "in the way"


def _lies_in_memory(name: str) -> bool:
    """Whether the file system has no disk (tmpfs, ramfs), whatever its flags say."""
    place, kind = "", ""
    try:
        mounts = Path("/proc/self/mounts").read_text()
    except OSError:
        return False
    for line in mounts.splitlines():
        _, mount, found, *_ = line.split()
        if (name == mount or name.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(place):
            place, kind = mount, found
    return kind in {"tmpfs", "ramfs"}
