"""Misses of a cache from the order of addresses: the line that was not used longest gives way.

Fully associative, so that conflicts of sets are left out; what is counted is what the size of a
cache and the length of its lines alone explain.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


def misses(addresses: Iterable[int], *, size_bytes: int, line_bytes: int = 64) -> int:
    """How many of these accesses find their line absent, the cache being empty at first.

    >>> misses(range(0, 256, 4), size_bytes=128)
    4
    >>> misses([0, 64, 128, 0], size_bytes=128), misses([0, 64, 128, 0], size_bytes=192)
    (4, 3)
    """
    lines: OrderedDict[int, None] = OrderedDict()
    room, count = size_bytes // line_bytes, 0
    for address in addresses:
        line = address // line_bytes
        if line in lines:
            lines.move_to_end(line)
            continue
        count += 1
        lines[line] = None
        if len(lines) > room:
            lines.popitem(last=False)
    return count
