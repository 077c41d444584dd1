"""Memory that was freed, back to the system: what large arrays leave behind in the C library.

glibc keeps freed arrays of up to 32 MB for later ones (`mallopt(3)`, the dynamic threshold of
M_MMAP_THRESHOLD), and where they lie between others they pile up: questions of a trace of 840 MB
left 300 MB beside 160 MB of columns, packing 529 M weights to int4 1,262 MB where 798 were in use.
`malloc_trim(3)` gives whole free pages back.
"""

from __future__ import annotations

import ctypes
import sys

LARGE_BYTES = 100_000_000
"""Below it is not worth a call."""


def return_freed_memory(used_bytes: int) -> None:
    """Give freed memory back after work on so many bytes; nothing where the C library cannot."""
    if used_bytes < LARGE_BYTES or not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
