"""Host and GPU on one clock, where stamps say that work began before it was launched.

Profilers convert the GPU's stamps to the host's clock, and are off by tens of microseconds at
times, more or less as the trace goes on. A launch that seems to come after the start of its kernel
binds nothing in a graph of moments, and what the host did before it seems to cost nothing.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ridgeline.trace.columns import Floats, Ints

CLOCK_US = 1000.0
"""The clocks are not further apart; an event that is longer before a launch has another one."""


def earlier_in_order(time_us: Floats, thread: Ints, latest_us: Floats, floor_us: Floats) -> Floats:
    """Move moments of threads earlier, so that none is later than it may be, in their order.

    >>> time, latest = np.array([1.0, 5.0, 6.0, 9.0]), np.array([np.inf, np.inf, 4.0, np.inf])
    >>> earlier_in_order(time, np.zeros(4, int), latest, np.array([-np.inf, 4.5, 0, 0])).tolist()
    [1.0, 4.5, 4.5, 9.0]

    Args:
        time_us: moments, (n), thread by thread and in the order of time in each.
        thread: the thread of each.
        latest_us: no later than this, and nothing before it is; infinite where it does not matter.
        floor_us: not moved to before this, which comes first.
    """
    found = np.minimum(time_us, latest_us)
    lowest = np.minimum(floor_us, time_us)
    edges = [0, *(np.flatnonzero(np.diff(thread)) + 1).tolist(), len(thread)]
    for begin, end in pairwise(edges):
        part = slice(begin, end)
        whole = np.minimum.accumulate(found[part][::-1])[::-1]
        found[part] = np.maximum.accumulate(np.maximum(whole, lowest[part]))
    return found
