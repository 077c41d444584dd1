"""Memory that nobody uses, and memory that was freed, back to the system from the C library.

glibc keeps freed arrays of up to 32 MB for later ones (`mallopt(3)`, the dynamic threshold of
M_MMAP_THRESHOLD), and where they lie between others they pile up: questions of a trace of 840 MB
left 300 MB beside 160 MB of columns, packing 529 M weights to int4 1,262 MB where 798 were in use.
`malloc_trim(3)` gives whole free pages back.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

from ridgeline.hardware.cgroups import cgroup_limits


def unused_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that a program could take without anything being swapped out.

    Where a control group limits us, no more than a half of that: how much of it is used already by
    what else is in the group is not looked at. 0 where the system does not tell (no Linux).
    """
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        return 0
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    available = int(found[1]) * 1024 if found else 0
    limit = cgroup_limits(root).memory_bytes
    return available if limit is None else min(available, limit // 2)


LARGE_BYTES = 100_000_000
"""Below it is not worth a call."""


def return_freed_memory(used_bytes: int) -> None:
    """Give freed memory back after work on so many bytes; nothing where the C library cannot."""
    if used_bytes < LARGE_BYTES or not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
