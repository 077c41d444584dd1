"""Each frame computes a share of a batch of cameras, the next frame the others (`in_turn.py`).

Even load where computing all on every second frame would leave the slow frames as slow as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.realtime.cures import CureCard, CureStage, Fit, named, option_number, option_text
from ridgeline.realtime.rewriting.layers import Rank, lay
from ridgeline.realtime.rewriting.modules import find_modules
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.observe import ObservedPipeline

CARD = CureCard(
    name="refresh-in-turn",
    title="Cameras in turn",
    costs="Features of a camera are up to k - 1 frames older than the frame's stamp says.",
    source="keyframes of Zhu et al., Deep feature flow, CVPR 2017, staggered over the batch",
    stage=CureStage.TIME,
    freedom=0.02,
)


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """A module takes most of the frame on a batch, and the pipeline says how good results are."""
    if not seen.has_quality:
        return Fit(reason="the pipeline does not say how good its results are (`judged_by`)")
    found = [
        one
        for one in seen.largest(Rank.TURN, least_share=0.15)
        if one.shapes and min(shapes[0][0] for shapes in one.shapes) >= 2
    ]
    if not found:
        return Fit(reason="no module takes much of the frame on a batch")
    return Fit(({"modules": named(found), "every": 2},))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Compute every k-th row, in turn."""
    from ridgeline.realtime.rewriting.in_turn import TurnLayer

    every = option_number(options, "every", 2)
    for module in find_modules(pipeline, option_text(options, "modules")).values():
        lay(module, Rank.TURN, TurnLayer(every))
    return pipeline
