"""Scripts that call their model a few times and end: how these calls are counted and repeated."""

from __future__ import annotations

import math
import statistics

from msgspec.structs import replace

from ridgeline.measure.live.assemble import RunWindows
from ridgeline.measure.wire import CallsAsSteps, Session

_ENOUGH_CALLS = 24
"""A script that calls its model as often is measured as it is."""
_REPEATED_SECONDS, _LEAST_REPEATED, _MOST_REPEATED = 60.0, 500, 20_000
"""How long all repeated calls of a script should take together, and how many they are."""


def counting_calls(session: Session) -> Session:
    """The same session, with outermost calls as steps."""
    return replace(session, calls=replace(session.calls, assumed=True, few=True))


def as_they_are(session: Session) -> Session:
    """The same session, with no call made once more."""
    return replace(session, calls=replace(session.calls, repeats=0))


def repeating(session: Session, windows: RunWindows) -> Session:
    """The same session, with each call made again, where a script has ended after a few.

    Of a script that trains nothing, and calls its model too few times to be looked at.
    """
    calls = windows.seen_steps + 1 if windows.seen_steps else max(windows.forwards_seen, 1)
    if calls >= _ENOUGH_CALLS or not (session.calls.few or windows.infers):
        return session
    seconds = windows.seconds()
    steps = _REPEATED_SECONDS / statistics.median(seconds) if seconds else _LEAST_REPEATED
    times = math.ceil(min(max(steps, _LEAST_REPEATED), _MOST_REPEATED) / calls)
    counted = counting_calls(session).calls
    return replace(session, calls=replace(counted, repeats=times, model=windows.main_model))


def told_of_repeats(calls: CallsAsSteps) -> list[str]:
    """What a step is where calls are repeated, in a sentence; nothing where they are not."""
    if not calls.repeats:
        return []
    told = (
        "the script calls its model too few times to be timed, so each call was made again and "
        "again with what it was given: a step is such a call alone, without what the script does "
        "between its calls"
    )
    return [told]
