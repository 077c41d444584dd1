"""What workers wrote on the board, as further columns of a run's calls."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from statistics import median

import msgspec

from ridgeline.realtime.observe.board import CallRow
from ridgeline.records.realtime_run import StageCalls


def seconds_since(began: float, nanoseconds: float) -> float:
    """A time of the monotonic clock in seconds since the run began."""
    return nanoseconds * 1e-9 - began


def observed_calls(calls: StageCalls, rows: Sequence[CallRow], began: float) -> StageCalls:
    """The calls with what was observed of each.

    A call lies within its row, as meters begin before it and end after it. Calls without a row (a
    stage that was held or skipped, one beyond the board's room) get zeros; a stage without any row
    gets no columns at all.
    """
    if not rows:
        return calls
    starts = [seconds_since(began, row.started) for row in rows]
    matched = [
        rows[bisect_right(starts, at + _ROUNDING_SECONDS) - 1]
        if mode in ("run", "degrade") and at + _ROUNDING_SECONDS >= starts[0]
        else _NO_ROW
        for at, mode in zip(calls.started, calls.modes, strict=True)
    ]
    matched = [
        row if seconds_since(began, row.ended) > at else _NO_ROW
        for row, at in zip(matched, calls.started, strict=True)
    ]
    return msgspec.structs.replace(
        calls,
        cpu_seconds=[row.cpu * 1e-9 for row in matched],
        core_wait_seconds=[row.core_wait * 1e-9 for row in matched],
        wake_wait_seconds=[row.wake_wait * 1e-9 for row in matched],
        collecting_seconds=[row.collecting * 1e-9 for row in matched],
        page_faults=[row.page_faults for row in matched],
        major_faults=[row.major_faults for row in matched],
        switches=[row.switches for row in matched],
        cores=[row.core for row in matched],
        slowdowns=_slowdowns(matched),
    )


_ROUNDING_SECONDS = 1e-6
_NO_ROW = CallRow(*[0] * len(CallRow._fields))


def _slowdowns(rows: Sequence[CallRow]) -> list[float]:
    """The fixed work after each call over its median; that of the call before where it has none."""
    measured = [row.fixed_work for row in rows if row.fixed_work]
    usual = last = median(measured) if measured else 1.0
    slowdowns = []
    for row in rows:
        last = row.fixed_work or last
        slowdowns.append(last / usual)
    return slowdowns
