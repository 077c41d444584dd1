"""Who has arenas of shared memory open: they have no name, so only /proc shows them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def arenas_of(process: int | str) -> set[int]:
    """The inodes of the arenas that a process has open; none where it is gone."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(entry).startswith("/memfd:ridgeline-arena"):
                    found.add(entry.stat().st_ino)
    return found


def holders(arenas: set[int]) -> list[str]:
    """The processes that have one of these arenas open."""
    numbers = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [number for number in numbers if arenas & arenas_of(number)]
