"""What the C library does with memory that is freed: given back at once, or used again.

Freed weights go back to the system at once, so that the peak is what is really held. Where there is
plenty of memory all of it is kept for the next block.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""The numbers of three settings of mallopt(3)."""
_LARGE_BYTES = 2**20
_USUAL_BYTES = 2**25
"""Where glibc's own limit ends up in a process that frees large blocks; it takes no larger one."""
_NEVER_BYTES = 2**30
"""Free memory at the end of the heap that is kept while more of the same is to come."""
_SMALL_BYTES = 2**17
"""What glibc itself keeps there, where nothing is set."""


_kept: list[bool] = []
"""Not empty as long as all that is freed is kept."""


@contextmanager
def everything_kept() -> Iterator[None]:
    """Within, freed memory is there for the next block, and nothing goes back to the system.

    Clearing pages took a fifth of the CPU time of a GPTQ. The peak is some 1.4 to 2.1 times what is
    held at once.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(_ARENA_MAX, 1)
    mallopt(_MMAP_THRESHOLD, _USUAL_BYTES)
    mallopt(_TRIM_THRESHOLD, _NEVER_BYTES)
    _kept.append(True)
    try:
        yield
    finally:
        _kept.pop()
        mallopt(_TRIM_THRESHOLD, 2 * _USUAL_BYTES)
        give_back()


@contextmanager
def large_blocks_given_back() -> Iterator[None]:
    """Within, every block of a MiB or more is a mapping of its own.

    glibc raises that limit to 32 MiB as blocks are freed, and keeps what is smaller in a heap that
    larger blocks of the next layer do not fit into: the peak was 1.4 to 1.6 times as high. It does
    not raise a limit that was set, so it is left where it would have ended. Threads that begin from
    then on share one heap: their own are given back to the system each time they are empty, with as
    many pages to clear anew. Nothing happens where the C library is another one.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(_ARENA_MAX, 1)
    mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, _USUAL_BYTES)
        mallopt(_TRIM_THRESHOLD, 2 * _USUAL_BYTES)


@contextmanager
def large_blocks_used_again() -> Iterator[None]:
    """Within, what one chunk of activations frees is there for the next one.

    A mapping's pages are cleared by the system as they are first touched, which took more than a
    quarter of a compression's time. What is free at the end is given back.
    """
    libc = ctypes.CDLL(None)
    mallopt, trim = getattr(libc, "mallopt", None), getattr(libc, "malloc_trim", None)
    if mallopt is None or trim is None or _kept:
        yield
        return
    mallopt(_MMAP_THRESHOLD, _USUAL_BYTES)
    mallopt(_TRIM_THRESHOLD, _NEVER_BYTES)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_TRIM_THRESHOLD, _SMALL_BYTES)
        trim(0)


def give_back() -> None:
    """Give the free memory to the system that lies between what is held."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None and not _kept:
        trim(0)
