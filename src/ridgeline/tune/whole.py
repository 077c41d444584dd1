"""The full stack against the script as it stood: its row, or how else it is vouched for."""

from __future__ import annotations

import math

from msgspec.structs import replace

from ridgeline.records import LedgerRow
from ridgeline.tune.questions import OTHERS_TURN, OUT_OF_TIME
from ridgeline.tune.search import StackSearch


def prove_whole(search: StackSearch) -> LedgerRow | None:
    """The full stack's row; where the whole does not hold, that of the largest part that does.

    None: no stack is left.
    """
    while search.stack:
        if search.known([], search.stack) is None:
            search.on_progress("measuring the full stack against the script as it stood")
        row = search.whole(search.stack)
        if row.kept:
            return row
        by_rows = _by_rows(search, row)
        if by_rows is not None:
            return by_rows
        last = search.rows_of_the_stack()[-1]
        search.notes.append(f"the whole stack did not hold: {row.reason}; without {last.technique}")
        search.stack = [m for m in search.stack if m.technique not in last.members]
    return None


def _by_rows(search: StackSearch, direct: LedgerRow) -> LedgerRow | None:
    """The full stack as the product of its rows, where measuring it directly decided nothing.

    Each row was proved beside the one above it; all of them hold at once in the product of
    their ends. None where the direct measurement contradicts that, or the losses do not agree.
    Where there was no time for it, or for the run that its losses are judged by, the rows are all
    there is.
    """
    rows = search.rows_of_the_stack()
    low, high = math.prod(row.ci_low for row in rows), math.prod(row.ci_high for row in rows)
    is_missing = not direct.rounds and direct.reason in (OUT_OF_TIME, OTHERS_TURN)
    agrees = direct.rounds and direct.ci_low < high and direct.ci_high > low
    is_untold = direct.loss_check is not None and direct.loss_check.untold
    if not (is_missing or (agrees and (direct.verified or is_untold))):
        return None
    if is_missing or is_untold:
        direct = _as_last_verified(direct, rows[-1])
    if is_untold and direct.ci_low > 1:
        return replace(direct, kept=True)
    what = "measured" if is_missing else f"decided in the time left: {direct.reason}"
    search.notes.append(
        f"the full stack as a whole was not {what}; the total is the product of its rows, "
        "each with an interval of 95 %"
    )
    if is_missing:
        direct = _as_last_measured(search, direct, rows[-1])
    level = math.sqrt(direct.baseline_step_seconds * direct.step_seconds)
    return replace(
        direct,
        multiplier=search.cumulative,
        ci_low=low,
        ci_high=high,
        baseline_step_seconds=level * search.cumulative**0.5,
        step_seconds=level / search.cumulative**0.5,
        kept=True,
    )


def _as_last_verified(direct: LedgerRow, last: LedgerRow) -> LedgerRow:
    """A whole stack's row without a check of its losses, with that of its last row."""
    return replace(
        direct,
        verified=last.verified,
        verification=f"on top of the others: {last.verification}",
        loss_check=last.loss_check,
    )


def _as_last_measured(search: StackSearch, direct: LedgerRow, last: LedgerRow) -> LedgerRow:
    """A whole stack's row without numbers of its own, with what its last row knows."""
    step = search.baseline.step_seconds.p50
    return replace(
        direct,
        peak_memory_bytes=last.peak_memory_bytes,
        rounds=last.rounds,
        baseline_step_seconds=step,
        step_seconds=step / search.cumulative,
    )
