"""A slow stage runs on every k-th frame; in between its last output is moved to where the car is.

Only where the author of the stage says how an output is brought up to date (for maps in bird's eye
view `rewriting/warp.py` moves them by the ego-motion, as BEVDet4D aligns frames).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ridgeline.realtime.cures import (
    CureCard,
    CureStage,
    Fit,
    option_number,
    option_text,
)
from ridgeline.realtime.declared import hints_of
from ridgeline.realtime.rewriting.graph import WrappedStage, innermost, with_calls
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.graph import Call
    from ridgeline.realtime.rewriting.observe import ObservedPipeline

CARD = CureCard(
    name="reuse-in-time",
    title="Slow stages on every k-th frame",
    costs="What appears in between is seen up to k - 1 frames later; frames take uneven time.",
    source="Huang and Huang, BEVDet4D, 2022, section 3.3",
    stage=CureStage.TIME,
    watched="mean",
    freedom=0.05,
)


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """A stage that matters declares how its output is aligned."""
    names = [
        name
        for name, code in pipeline.code.items()
        if hints_of(innermost(code.call)).align is not None
        and seen.share(seen.stage_seconds.get(name, 0.0)) >= 0.05
    ]
    if not names:
        return Fit(reason="no slow stage declares how its last output is aligned")
    return Fit(tuple({"stages": ", ".join(names), "every": k} for k in (2, 3)))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Run the stages on every k-th frame, each on another where there are several."""
    every = option_number(options, "every", 2)
    for turn, name in enumerate(option_text(options, "stages").split(",")):
        pipeline = with_calls(pipeline, partial(_Reusing, every=every, turn=turn), [name.strip()])
    return pipeline


class _Reusing(WrappedStage):
    """A stage that runs on every k-th frame."""

    def __init__(self, call: Call, *, every: int, turn: int) -> None:
        super().__init__(call)
        self._align = hints_of(innermost(call)).align
        self._every, self._frame = every, turn % every
        self._last: tuple[Any, tuple[Any, ...]] | None = None

    def __call__(self, *inputs: Any) -> Any:
        self._frame += 1
        if self._last is None or self._align is None or self._frame % self._every == 0:
            output = self.call(*inputs)
        else:
            output = self._align(self._last[0], self._last[1], inputs)
        self._last = (output, inputs)
        return output
