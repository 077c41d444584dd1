"""Calls of one module within a frame become one batch: a loop over cameras, without rewriting it.

The loop stays as it is written. Answers are pending until somebody looks at one, and then all are
computed at once (`rewriting/pending.py`); a loop that looks at each answer gains nothing and stays
right. Small convolutions on one image leave cores and tensor units idle between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline.realtime.cures import CureCard, CureStage, Fit, named, option_text
from ridgeline.realtime.results import ROUNDING
from ridgeline.realtime.rewriting.graph import WrappedStage, with_calls
from ridgeline.realtime.rewriting.layers import Rank, lay
from ridgeline.realtime.rewriting.modules import find_modules
from ridgeline.realtime.rewriting.settle import settled
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.observe import ObservedPipeline

CARD = CureCard(
    name="camera-batching",
    title="One batch for the calls of a frame",
    costs="The first answer is there when the last is; activations of all cameras at once.",
    source="Neubig et al., On-the-fly operation batching in dynamic graphs, NeurIPS 2017",
    stage=CureStage.BATCH,
    freedom=ROUNDING,
)


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """A module is called several times per frame with inputs of one shape."""
    found = [
        one
        for one in seen.modules
        if one.tensors_only
        and one.parameters
        and one.calls_per_frame >= 1.5
        and not one.parts_layered
        and Rank.BATCH not in one.ranks
        and len({tuple(shape[1:] for shape in shapes) for shapes in one.shapes}) == 1
        and seen.share(one.seconds_per_frame) >= 0.02
    ]
    outer = [one for one in found if not any(one.is_inside(other) for other in found)]
    if not outer:
        return Fit(reason="no module is called several times in a frame on inputs of one shape")
    return Fit(({"modules": named(outer)},))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Gather the calls of these modules; a stage's output is whole when it leaves the stage."""
    from ridgeline.realtime.rewriting.pending import CallBatcher

    for module in find_modules(pipeline, option_text(options, "modules")).values():
        lay(module, Rank.BATCH, CallBatcher())
    return with_calls(pipeline, _Settling, pipeline.code)


class _Settling(WrappedStage):
    """A stage whose output is computed when it returns."""

    def __call__(self, *inputs: Any) -> Any:
        return settled(self.call(*inputs))
