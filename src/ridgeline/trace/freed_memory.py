"""Memory that was freed, back to the system: what a question of a large trace leaves behind.

glibc keeps freed arrays of up to 32 MB for later ones (`mallopt(3)`, the dynamic threshold of
M_MMAP_THRESHOLD), and where they lie between others they pile up from question to question: on a
trace of 840 MB to 300 MB beside 160 MB of columns. `malloc_trim(3)` gives whole free pages back.
"""

from __future__ import annotations

import ctypes
import sys

LARGE_BYTES = 100_000_000
"""Below this size of a trace it is not worth a call."""


def return_freed_memory(trace_bytes: int) -> None:
    """Give freed memory back after work on a large trace; nothing where the C library cannot."""
    if trace_bytes < LARGE_BYTES or not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
