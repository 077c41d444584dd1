"""Let distributions take their arguments as they are given.

`torch.distributions` checks every parameter and every value against its constraints, and the host
waits for each answer. The default is switched off; distributions that a script makes with
`validate_args=True`, and what it switches on later itself, go on checking.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, patch
from ridgeline.records.edits import AtStart, Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

CARD = Card(
    name="no-argument-checks",
    title="No checks of the arguments of distributions",
    cures=("argument-checks",),
    costs="A parameter or value that is NaN or out of bounds is no longer refused where it is "
    "passed.",
    source="PyTorch documentation, torch.distributions, set_default_validate_args",
    equivalence="bit-equal",
    stage=Stage.SETTINGS,
)

_FELT = 0.005
"""Share of a step from which on checks are worth a line."""


def applies(context: Context) -> Applicability:
    """Distributions check because that is the default, and it is felt."""
    checks = context.profile.habit("argument_check")
    if checks.calls == 0:
        return Applicability(False, "no distribution was seen to check its arguments by default")
    share = _share(context)
    if share < _FELT:
        return Applicability(False, f"checks of arguments take {share:.1%} of a step")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Checks go; on a GPU what they waited for may be waited for elsewhere."""
    return amdahl(_share(context), 1.2 if context.device == "cuda" else 3.0, 50.0)


def apply(points: Points, options: Options) -> Undo:
    """Switch the default off as the first distribution is made, and never again."""
    switched = False

    def switching(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(made: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal switched
            if not switched:
                switched = True
                switch()
            original(made, *args, **kwargs)

        return init

    def switch() -> None:
        from torch.distributions import Distribution

        if Distribution._validate_args:
            Distribution.set_default_validate_args(False)
            points.changed(CARD.name, "distributions take their arguments unchecked")

    remove = patch("torch.distributions:Distribution.__init__", switching)

    def undo() -> None:
        from torch.distributions import Distribution

        remove()
        if CARD.name in points.effects:
            Distribution.set_default_validate_args(True)

    return undo


def edits(context: Context, options: Options) -> list[Edit]:
    """The switch, after the imports."""
    code = "torch.distributions.Distribution.set_default_validate_args(False)"
    return [AtStart(files=context.files, code=code)]


def _share(context: Context) -> float:
    seconds = context.profile.habit("argument_check").seconds
    return seconds / context.profile.step_seconds.mean if seconds else 0.0
