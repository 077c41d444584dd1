"""Which host call started which GPU event, by correlation.

A correlation can name many GPU events (one graph launch) and two calls (the runtime's and the
driver's beneath it): the earlier call counts. A GPU event whose launch the trace does not hold has
no launch; it never borrows another's.
"""

from __future__ import annotations

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Ints, Trace


def launch_rows(trace: Trace) -> Ints:
    """Row in `trace.host` of the call that started each GPU event, ABSENT where there is none."""
    return trace.derived("launch_rows", _launch_rows)


def _launch_rows(trace: Trace) -> Ints:
    gpu, host = trace.gpu, trace.host
    calls = np.flatnonzero(
        ((host.category == Category.RUNTIME) | (host.category == Category.DRIVER))
        & (host.correlation > 0)
    )
    found = np.full(len(gpu), ABSENT, np.int64)
    if not len(calls) or not len(gpu):
        return found
    calls = calls[np.isin(host.correlation[calls], gpu.correlation)]
    calls = calls[np.lexsort((host.start_us[calls], host.correlation[calls]))]
    numbers = host.correlation[calls]
    if not len(calls):
        return found
    places = np.minimum(np.searchsorted(numbers, gpu.correlation, "left"), len(calls) - 1)
    matched = numbers[places] == gpu.correlation
    found[matched] = calls[places[matched]]
    return found


def launch_start_us(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """When each GPU event was launched; NaN where the trace does not say."""
    rows = launch_rows(trace)
    starts = np.full(len(rows), np.nan)
    known = rows != ABSENT
    starts[known] = trace.host.start_us[rows[known]]
    return starts
