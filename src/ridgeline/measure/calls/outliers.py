"""Why some calls took longer than most, from what was noted beside each of them.

A slow call takes half as long again as the median, as in the rule for a script's latency tail. Its
cause is what explains most of its excess: collections and time in the kernel in their own seconds,
a lower clock by the ratio of clocks. Losing the core is counted and not timed by the system, so it
takes what the others leave.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from ridgeline.measure.calls.loop import CallSample
from ridgeline.measure.statistics.order_statistics import quantile
from ridgeline.records.calls import CallTimes, OutlierCause

SLOW = 1.5
"""A call of so many medians is an outlier."""
_EXPLAINS = 0.4
"""The least share of a call's excess that makes something its cause."""
_LOWER_CLOCK = 0.95


def summarise(samples: Sequence[CallSample], period_seconds: float | None) -> CallTimes:
    """Percentiles and causes as a record.

    Args:
        samples: At least one call, without the first of the process.
        period_seconds: At which they were made; None: a closed loop.
    """
    times = [one.seconds for one in samples]
    return CallTimes(
        calls=len(times),
        period_seconds=period_seconds,
        p50=quantile(times, 0.5),
        p99=quantile(times, 0.99),
        mean_seconds=statistics.fmean(times),
        max_seconds=max(times),
        call_seconds=tuple(times),
        missed=sum(one.missed for one in samples),
        outliers=causes(samples),
    )


def causes(samples: Sequence[CallSample]) -> tuple[OutlierCause, ...]:
    """The slow calls by their cause, the costliest cause first.

    >>> usual = [CallSample(seconds=1.0)] * 20
    >>> [found] = causes([*usual, CallSample(seconds=3.0, gc_seconds=1.9)])
    >>> found.cause, found.calls, found.excess_seconds
    ('garbage collection', 1, 2.0)
    """
    usual = statistics.median(one.seconds for one in samples)
    counted: dict[str, int] = defaultdict(int)
    excess: dict[str, float] = defaultdict(float)
    for one in samples:
        if one.seconds >= SLOW * usual:
            cause = _cause(one, samples, one.seconds - usual)
            counted[cause] += 1
            excess[cause] += one.seconds - usual
    found = [
        OutlierCause(cause=cause, calls=counted[cause], excess_seconds=spent)
        for cause, spent in excess.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.excess_seconds))


def _cause(one: CallSample, samples: Sequence[CallSample], excess: float) -> str:
    kernel = statistics.median(other.kernel_seconds for other in samples)
    faults = statistics.median(other.page_faults for other in samples)
    switches = statistics.median(other.preemptions for other in samples)
    explained = {"garbage collection": one.gc_seconds}
    if one.page_faults > faults:
        explained["page faults"] = one.kernel_seconds - kernel
    clocks = [other.hertz for other in samples if other.hertz is not None]
    if one.hertz is not None and one.hertz < _LOWER_CLOCK * statistics.median(clocks):
        explained["a lower clock"] = one.seconds * (1 - one.hertz / statistics.median(clocks))
    chief = max(explained, key=lambda name: explained[name])
    if explained[chief] >= _EXPLAINS * excess:
        return chief
    return "waiting for a core" if one.preemptions > switches else "unexplained"
