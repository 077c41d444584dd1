"""The script as it stood and with its stack, called at a camera's pace beside a closed loop.

A closed loop keeps caches warm and clocks high, and hides what a frame every 33 ms meets. Both
variants take turns, in blocks of either kind, so that drift hits all four alike.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from ridgeline.errors import InputError, RidgelineError
from ridgeline.measure.calls.loop import CallSample
from ridgeline.measure.calls.outliers import summarise
from ridgeline.measure.wire import Applied
from ridgeline.records.ledger import PacedCalls
from ridgeline.tune.pool import Pool, Variant

AS_IT_STOOD, TUNED = "as it stood", "tuned"
SHARE, LEAST_SECONDS, MOST_SECONDS = 0.2, 2.0, 60.0
"""Share of the budget that calls at the period may take, and its bounds in seconds."""
LEAST_CALLS, MOST_CALLS = 20, 5000
_ROUNDS = 4
_CLOSED_SHARE = 0.25
"""The part of that time for the closed loop, whose calls follow at once and are many."""
_NO_FASTER = 1.02


def refuse_training(kind: str, period_seconds: float | None) -> None:
    """Frames come to a script that answers.

    Raises:
        InputError: A period is given for a script that trains.
    """
    if period_seconds is not None and kind != "inference":
        raise InputError(
            "--period: the script trains; a period is that of frames, for scripts that only answer"
        )


def paced_seconds(budget_seconds: float) -> float:
    """What calls at a period may take of a budget."""
    return min(max(SHARE * budget_seconds, LEAST_SECONDS), MOST_SECONDS, 0.4 * budget_seconds)


def call_at_pace(
    pool: Pool,
    command: list[str],
    stack: list[Applied],
    *,
    period_seconds: float,
    seconds: float,
    on_progress: Callable[[str], None],
) -> tuple[list[PacedCalls], list[str]]:
    """Both variants at the period and in a closed loop; and what a reader must know.

    Args:
        pool: Has their runs, or starts them.
        command: The script.
        stack: What survived; empty: the script as it stood is called alone.
        period_seconds: From one frame to the next.
        seconds: What all calls together may take.
        on_progress: Hears what is done.
    """
    variants = {AS_IT_STOOD: Variant(command=command)}
    if stack:
        variants[TUNED] = Variant(command=command, stack=tuple(stack))
    closed: dict[str, list[CallSample]] = {name: [] for name in variants}
    paced: dict[str, list[CallSample]] = {name: [] for name in variants}
    part = seconds / (_ROUNDS * len(variants))
    began = monotonic()
    try:
        for number in range(_ROUNDS):
            if number and monotonic() - began > seconds:
                break
            on_progress(f"calling at the period, round {number + 1} of {_ROUNDS}")
            for name, variant in variants.items():
                live = pool.take(variant)
                at_once = _CLOSED_SHARE * part
                closed[name] += live.calls(MOST_CALLS, within_seconds=at_once)
                least = LEAST_CALLS * period_seconds / _ROUNDS
                paced[name] += live.calls(
                    MOST_CALLS,
                    within_seconds=max(part - at_once, least),
                    period_seconds=period_seconds,
                )
                if live.ended:
                    pool.ended(live)
    except RidgelineError as error:
        return [], [f"the script could not be called at the period: {error}"]
    found = [
        PacedCalls(
            name=name,
            closed=summarise(closed[name], None),
            paced=summarise(paced[name], period_seconds),
        )
        for name in variants
        if closed[name] and paced[name]
    ]
    return found, _notes(found, variants)


def _notes(found: list[PacedCalls], variants: dict[str, Variant]) -> list[str]:
    by_name = {one.name: one for one in found}
    notes = [
        f"{name}: the script ended before it could be called at the period"
        for name in variants
        if name not in by_name
    ]
    before, after = by_name.get(AS_IT_STOOD), by_name.get(TUNED)
    if before is not None and after is not None:
        gained = before.paced.p50.seconds / after.paced.p50.seconds
        if gained < _NO_FASTER:
            notes.append(
                f"at the period the stack gains nothing: a call takes {gained:.2f} times less"
            )
    return notes
