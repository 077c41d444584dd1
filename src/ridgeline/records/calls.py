"""How long calls of a model took, one after the other or at a period, and why some took longer."""

from __future__ import annotations

import msgspec


class Quantile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A percentile of call times, with its 95 % interval by order statistics."""

    seconds: float
    low_seconds: float | None
    """Null where the calls are too few to bound it from below."""
    high_seconds: float | None
    """Null where the calls are too few to bound it from above."""


class OutlierCause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls that took half as long again as the median, and what happened during them."""

    cause: str
    """`garbage collection`, `waiting for a core`, `page faults`, `a lower clock`, or `unexplained`.
    """
    calls: int
    excess_seconds: float
    """Their time beyond the median, summed up."""


class CallTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of one size in one process, the first one apart."""

    calls: int
    period_seconds: float | None
    """Time from one start to the next; null: each call begins when the one before has ended."""
    p50: Quantile
    p99: Quantile
    mean_seconds: float
    max_seconds: float
    missed: int = 0
    """Paced calls that had not ended when the next one was due."""
    call_seconds: tuple[float, ...] = ()
    """Each call, in order."""
    outliers: tuple[OutlierCause, ...] = ()
    """Causes, the costliest first."""
