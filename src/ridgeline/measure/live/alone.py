"""Whether a script that failed under us also fails without Ridgeline.

To tell whose fault it is, the command runs once more as the user would run it, with no more of
ours in it than what keeps files safe. Where that goes well it runs a third time, with all of ours:
a script that fails only now and then (what it draws at random decides) would be blamed on us.
"""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.errors import OurDefect, RidgelineError, ScriptError
from ridgeline.measure.live.conductor import ENTRY, Conductor
from ridgeline.measure.live.crash import Crash, ScriptFailed, crash_of, told_of
from ridgeline.measure.wire import Session

PROTECT = "ridgeline.measure.child.alone:protect"
_PIPE = "give the answers as a file, with `< answers.txt` behind the command"
_LEAST_SECONDS = 15.0
_MOST_SECONDS = 120.0
_MARGIN = 2.0
"""A run that lasts so many times as long as the one that failed does not fail the same way."""


def judged(
    command: list[str], failed: ScriptFailed, on_progress: Callable[[str], None]
) -> RidgelineError:
    """The error to raise for a script that failed under us: is it its own fault, or ours?"""
    crash = failed.crash
    if crash.asked_for_input:
        told = (
            f"{told_of(command, crash)}; it asks for input, which a measured run has not: {_PIPE}"
        )
        return ScriptError(told, details=crash.traceback)
    limit = min(max(_MARGIN * failed.after_seconds + 5.0, _LEAST_SECONDS), _MOST_SECONDS)
    on_progress(
        f"the script failed; running it without ridgeline, for at most {limit:.0f} s, to compare"
    )
    alone = _run_again(command, limit, PROTECT)
    told = told_of(command, crash)
    if alone is None:
        on_progress("that went well; running it with ridgeline once more, to see if it fails again")
        again = _run_again(command, limit, ENTRY)
        if again is None:
            told += (
                " (it fails now and then: run once more it went through, with ridgeline as well)"
            )
            return ScriptError(told, details=crash.traceback)
        told += " (it does NOT fail without ridgeline: this is our defect, please report it)"
        return OurDefect(told, details=crash.traceback)
    if alone.is_like(crash):
        told += " (it fails the same way without ridgeline)"
    else:
        told += f" (without ridgeline it fails too, but otherwise: {alone.what})"
    return ScriptError(told, details=crash.traceback)


def _run_again(command: list[str], limit_seconds: float, entry: str) -> Crash | None:
    """How the command fails, with nobody listening; None when it ends well, or is still at it."""
    with Conductor(command, Session(report=False), entry=entry) as run:
        code = run.outlast(limit_seconds)
        return crash_of(code, run.output) if code else None
