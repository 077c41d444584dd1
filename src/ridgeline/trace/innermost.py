"""Which host event was running at a moment: the innermost one that is open on the thread.

One sweep per thread over its events (by start, longer ones first) with a stack of those still open.
"""

from __future__ import annotations

import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Ints, Mask, Trace


def innermost_at(
    trace: Trace, threads: Ints, moments_us: Floats, chosen: Mask | None = None
) -> Ints:
    """Row of `trace.host` for each (thread, moment), ABSENT where nothing is open.

    `chosen` is a mask over the host events that count.
    """
    host = trace.host
    found = np.full(len(moments_us), ABSENT, np.int64)
    for thread in np.unique(threads).tolist():
        asked = np.flatnonzero(threads == thread)
        asked = asked[np.argsort(moments_us[asked], kind="stable")]
        own = host.thread == thread
        rows = np.flatnonzero(own if chosen is None else own & chosen)
        rows = rows[np.lexsort((-host.duration_us[rows], host.start_us[rows]))]
        starts = host.start_us[rows]
        starts_list, ends_list = starts.tolist(), (starts + host.duration_us[rows]).tolist()
        stack: list[int] = []
        following, count = 0, len(rows)
        for query, moment in zip(asked.tolist(), moments_us[asked].tolist(), strict=True):
            while following < count and starts_list[following] <= moment:
                while stack and ends_list[stack[-1]] <= starts_list[following]:
                    stack.pop()
                stack.append(following)
                following += 1
            while stack and ends_list[stack[-1]] <= moment:
                stack.pop()
            if stack:
                found[query] = rows[stack[-1]]
    return found
