"""Freed weights go back to the system at once, so that the peak is what is really held."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of mallopt(3)."""
_LARGE_BYTES = 2**20
_USUAL_BYTES = 2**25
"""Where glibc's own limit ends up in a process that frees large blocks."""


@contextmanager
def large_blocks_given_back() -> Iterator[None]:
    """Within, every block of a MiB or more is a mapping of its own.

    glibc raises that limit to 32 MiB as blocks are freed, and keeps what is smaller in a heap that
    larger blocks of the next layer do not fit into: the peak was 1.4 to 1.6 times as high. It does
    not raise a limit that was set, so it is left where it would have ended. Nothing happens where
    the C library is another one.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, _USUAL_BYTES)
        mallopt(_TRIM_THRESHOLD, 2 * _USUAL_BYTES)
