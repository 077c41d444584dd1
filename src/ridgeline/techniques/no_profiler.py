"""A profiler left on records every operator of every step; stop it after the first few.

What it recorded until then stays readable, so a script that prints a table or writes a trace at
its end still does, of the first steps only.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, in_reverse, patch
from ridgeline.records.edits import Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

CARD = Card(
    name="no-profiler",
    title="Profiler stopped after the first steps",
    cures=("profiler-left-on",),
    costs="The script's own profile covers its first steps only.",
    source="PyTorch documentation, torch.profiler",
    equivalence="bit-equal",
    stage=Stage.SETTINGS,
)

_STEPS = 3


def applies(context: Context) -> Applicability:
    """A profiler of the script's own was recording."""
    if not context.profile.settings.autograd_profiler:
        return Applicability(False, "no profiler of the script's own was recording")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Every operator loses a fixed cost."""
    return amdahl(context.phase_share("forward", "backward", "optimizer"), 1.05, 2.0)


def apply(points: Points, options: Options) -> Undo:
    """Stop each profiler that the script runs once it has seen a few steps."""
    kineto = _StopEarly(
        "torch.profiler:profile.start",
        ("torch.profiler:profile.stop", "torch.profiler:profile.step"),
    )
    legacy = _StopEarly(
        "torch.autograd.profiler:profile.__enter__", ("torch.autograd.profiler:profile.__exit__",)
    )

    def after_step() -> None:
        stopped = kineto.step(lambda profile: profile.stop())
        stopped += legacy.step(lambda profile: profile.__exit__(None, None, None))
        if stopped:
            points.changed(CARD.name, f"profiler stopped after {_STEPS} steps")

    points.after_step.append(after_step)

    def undo() -> None:
        points.after_step.remove(after_step)
        kineto.restore()
        legacy.restore()

    return undo


class _StopEarly:
    """Watches the instances of one profiler class that are running.

    The end of one that was stopped before it is ignored.
    """

    def __init__(self, start: str, ends: tuple[str, ...]) -> None:
        self._running: dict[int, tuple[Any, int]] = {}
        self._stopped: dict[int, Any] = {}
        self.restore = in_reverse(
            [patch(start, self._starting), *(patch(name, self._ending) for name in ends)]
        )
        """Put the class back as it was."""

    def _starting(self, original: Any) -> Any:
        @functools.wraps(original)
        def start(profile: Any, *args: Any) -> Any:
            caller = str(sys._getframe(1).f_globals.get("__name__", ""))
            if not caller.startswith("ridgeline."):
                self._running[id(profile)] = (profile, 0)
            return original(profile, *args)

        return start

    def _ending(self, original: Any) -> Any:
        is_step = original.__name__ == "step"

        @functools.wraps(original)
        def end(profile: Any, *args: Any) -> Any:
            if id(profile) in self._stopped:
                return None
            if not is_step:
                self._running.pop(id(profile), None)
            return original(profile, *args)

        return end

    def step(self, stop: Any) -> int:
        """Stop, at the end of a step, those that have seen enough. Returns how many."""
        enough = []
        for key, (profile, steps) in self._running.items():
            self._running[key] = (profile, steps + 1)
            if steps + 1 >= _STEPS:
                enough.append(key)
        for key in enough:
            profile, _ = self._running.pop(key)
            stop(profile)
            self._stopped[key] = profile  # kept, so that its id is not given to another
        return len(enough)


def edits(context: Context, options: Options) -> list[Edit]:
    """No edit is offered: only its author knows what reads the profiler."""
    return []
