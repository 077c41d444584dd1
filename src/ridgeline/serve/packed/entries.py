"""The folder of packed models: what is in it, its bound, and how it is emptied."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

import msgspec

from ridgeline.checkpoints.revision import model_name
from ridgeline.hardware.ceilings import cache_folder

MOST_BYTES = 32 * 10**9
"""The bound of all entries together; those used longest ago go."""
MOST_OF_DISK = 0.25
"""The share of the free room on the disk that one entry may take."""
LEAST_BYTES = 2**20
"""The least size of a checkpoint of which anything is kept. Even a small one starts sooner so, for
transformers need not be imported; below are models that tests make and throw away."""
SUFFIX, TOKENIZER_SUFFIX = ".packed", ".tokenizer"
"""The endings of packed models and of kept tokenizers."""
_STALE_SECONDS = 3600.0
"""A file that is not whole is written by nobody any more after so long."""


class KeptEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry, for people."""

    path: str
    bytes: int
    used: float
    """When it was last read or written, in seconds since 1970."""


def folder() -> Path:
    """The folder in which entries lie."""
    return cache_folder() / "packed"


def entries() -> list[KeptEntry]:
    """All entries, the one used last first."""
    found = []
    for path in _files():
        with contextlib.suppress(OSError):  # another process removed it
            known = path.stat()
            found.append(KeptEntry(path=str(path), bytes=known.st_size, used=known.st_mtime))
    return sorted(found, key=lambda one: -one.used)


def empty() -> int:
    """Remove all entries; the bytes that this freed."""
    freed = 0
    for path in (*_files(), *_unfinished()):
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            path.unlink()
            freed += size
    return freed


def name_for_people(model: Path) -> str:
    """What an entry's name begins with, from the folder of its model."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in model_name(model))[:40]


def no_room_for(size: int) -> str | None:
    """Why an entry of that size is not kept; None: there is room for it."""
    if size > MOST_BYTES:
        return f"{size} bytes are more than the {MOST_BYTES} that the folder may hold"
    try:
        folder().mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder()).free
    except OSError as error:
        return f"{folder()}: {error.strerror or error}"
    if size > free * MOST_OF_DISK:
        return f"{size} bytes are more than a quarter of the {free} that are free in {folder()}"
    return None


def make_room() -> None:
    """Remove what was used longest ago, and what killed processes left, beyond the bound."""
    for path in _unfinished():
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()
    held = 0
    for at, entry in enumerate(entries()):
        held += entry.bytes
        if at and held > MOST_BYTES:
            Path(entry.path).unlink(missing_ok=True)


def touch(path: Path) -> None:
    """Note that an entry was used."""
    with contextlib.suppress(OSError):  # of another user, who keeps it
        os.utime(path)


def _files() -> list[Path]:
    return [
        path
        for suffix in (SUFFIX, TOKENIZER_SUFFIX)
        for path in sorted(folder().glob(f"[!.]*{suffix}"))
    ]


def _unfinished() -> list[Path]:
    return [
        path
        for suffix in (SUFFIX, TOKENIZER_SUFFIX)
        for path in sorted(folder().glob(f".*{suffix}.*.tmp"))
    ]
