"""What the C heap holds: asked at step boundaries, it tells whether steps leave memory behind.

The heap holds the tensors of the CPU and every autograd graph, so a graph that is kept alive
through its loss shows here although hardly a tensor does. glibc tells what it holds through
`mallinfo2` (man 3 mallinfo2: `uordblks` in its arenas, `hblkhd` in mappings of their own).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


class _MallInfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


@cache
def _mallinfo2() -> Any:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None  # not glibc, or one before 2.33
    function.restype = _MallInfo
    return function


def heap_bytes() -> int | None:
    """Bytes that the C heap holds now; None where the C library does not tell."""
    function = _mallinfo2()
    if function is None:
        return None
    info = function()
    return int(info.uordblks) + int(info.hblkhd)
