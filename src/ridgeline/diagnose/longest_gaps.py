"""The longest times in which a GPU did nothing, each with what the host did: evidence of verdicts.

longest_gap(view, causes)      of the window
edge_gap(view, causes)         before the GPU's first event or after its last
longest_stalls(view, causes)   in which work was pending and nothing shows for what
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.trace.time.idle import idle_gap
from ridgeline.trace.time.idle_causes import IdleCauses
from ridgeline.trace.windows import View


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestGap:
    """The longest time in which the GPU did nothing."""

    us: float
    cause: str
    call: str | None
    line: str | None
    pending: bool
    """Was the work that ended it already launched for most of the gap?"""
    place: str = "between"
    """`before` the first event of the GPU, `between` two, or `after` the last one."""


def longest_gap(view: View, causes: IdleCauses) -> LongestGap | None:
    """The longest gap of the window; None where the GPU is never idle."""
    lengths = causes.gaps.length_us
    return _gap(view, causes, int(np.argmax(lengths))) if len(lengths) else None


def edge_gap(view: View, causes: IdleCauses) -> LongestGap | None:
    """The longer of the two gaps at the ends of a window that is wider than the GPU's work."""
    found = causes.gaps
    if view.window != "span" or not len(found.start_us):
        return None
    places = []
    if found.start_us[0] <= view.start_us:
        places.append((float(found.length_us[0]), 0, "before"))
    if found.after[-1] < 0:
        places.append((float(found.length_us[-1]), len(found.start_us) - 1, "after"))
    if not places:
        return None
    _, number, place = max(places)
    return _gap(view, causes, number, place)


def longest_stalls(view: View, causes: IdleCauses) -> tuple[LongestGap, ...]:
    """The three longest gaps in which work was pending for no reason that the trace shows."""
    numbers = np.flatnonzero(causes.stalled)
    numbers = numbers[np.argsort(-causes.pending_us[numbers])][:3]
    return tuple(_gap(view, causes, int(number)) for number in numbers)


def _gap(view: View, causes: IdleCauses, number: int, place: str = "between") -> LongestGap:
    found = causes.gaps
    worst = idle_gap(view.trace, found, number)
    return LongestGap(
        us=worst.length_us,
        cause=worst.cause,
        call=worst.host_call,
        line=worst.line,
        pending=bool(causes.pending_us[number] > 0.5 * worst.length_us),
        place=place,
    )
