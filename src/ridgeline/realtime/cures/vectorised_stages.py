"""A step written for one image, one box after the other, as one operation on whole arrays.

Preprocessing of images is understood from what it does (`rewriting/preprocessing.py`); for other
stages the author declares a vectorised twin, and this cure proves that it is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline.errors import InputError
from ridgeline.realtime.cures import CureCard, CureStage, Fit, option_text
from ridgeline.realtime.declared import hints_of
from ridgeline.realtime.results import ROUNDING
from ridgeline.realtime.rewriting.graph import WrappedStage, innermost, with_calls
from ridgeline.realtime.rewriting.preprocessing import ImageRecipe, understand
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.graph import Call
    from ridgeline.realtime.rewriting.observe import ObservedPipeline

CARD = CureCard(
    name="vectorised-stages",
    title="Whole arrays in the place of loops",
    costs="The step is no longer the code that its author reads first.",
    source="Autoware #6989: preprocessing of CenterPoint moved, 16.9 → 13.0 ms",
    stage=CureStage.INPUT,
    freedom=ROUNDING,
)


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """A stage declares a twin, or is preprocessing that was understood."""
    known = [
        name
        for name, code in pipeline.code.items()
        if seen.share(seen.stage_seconds.get(name, 0.0)) >= 0.01
        and not isinstance(code.call, _Vectorised)
        and (
            hints_of(innermost(code.call)).vectorised is not None
            or understand(seen.samples.get(name, ())) is not None
        )
    ]
    if not known:
        return Fit(reason="no stage declares a vectorised twin or is preprocessing of images")
    return Fit(({"stages": ", ".join(known)},))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Put the twins in; preprocessing is understood on its first frames."""
    names = [name.strip() for name in option_text(options, "stages").split(",")]
    for name in names:
        if name not in pipeline.code:
            raise InputError(
                f"no stage {name!r} in the pipeline; known: {', '.join(pipeline.code)}"
            )
    return with_calls(pipeline, _Vectorised, names)


class _Vectorised(WrappedStage):
    """A stage whose twin is called: the declared one, or the recipe that its first frames fit."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._twin = hints_of(innermost(call)).vectorised
        self._frames: list[tuple[Any, Any]] = []

    @property
    def runs(self) -> Call:
        """The declared twin, whose modules later cures change."""
        declared = hints_of(innermost(self.call)).vectorised
        return self.call if declared is None else declared

    def __call__(self, *inputs: Any) -> Any:
        if self._twin is not None:
            return self._twin(*inputs)
        output = self.call(*inputs)
        self._frames.append((inputs[0], output))
        if len(self._frames) == _FRAMES:
            self._twin = self._understood()
            self._frames.clear()
        return output

    def _understood(self) -> ImageRecipe:
        found = understand(self._frames)
        if found is None:
            raise InputError(f"its first {_FRAMES} frames do not show what it does to images")
        return found


_FRAMES = 3
