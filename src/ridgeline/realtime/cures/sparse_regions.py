"""A stage computes only where something is likely to be, or where something changed (`regions.py`).

Where is what the author of the stage declares (last frame's objects, the road, a map); without
that, the tiles of the image that changed since they were last computed, where few do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.realtime.cures import CureCard, CureStage, Fit, option_number, option_text
from ridgeline.realtime.declared import hints_of
from ridgeline.realtime.rewriting.graph import innermost
from ridgeline.realtime.rewriting.layers import Rank, lay
from ridgeline.realtime.rewriting.modules import find_modules
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.observe import ObservedModule, ObservedPipeline

CARD = CureCard(
    name="sparse-regions",
    title="Only where it matters",
    costs="Elsewhere the answer is that of an earlier frame; the time depends on the scene.",
    source="Ren et al., SBNet, CVPR 2018; Cavigelli et al., CBinfer, ICDSC 2017",
    stage=CureStage.SPACE,
    watched="mean",
    freedom=0.05,
)
_FEW = 0.4
"""Share of tiles that change from frame to frame, at most, where no mask is declared."""
_TILE = 32


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """A mask is declared for a stage, or the images of a module hardly change."""
    masked = {
        name: hints_of(innermost(code.call)).tile
        for name, code in pipeline.code.items()
        if hints_of(innermost(code.call)).regions is not None
    }
    fit = [
        one
        for one in seen.largest(Rank.REGIONS, least_share=0.1)
        if one.has_convolutions and (one.stage in masked or _is_still(one))
    ]
    if not fit:
        return Fit(reason="no mask is declared, and no module sees images that hardly change")
    return Fit(tuple({"modules": one.name, "tile": masked.get(one.stage, _TILE)} for one in fit))


def _is_still(one: ObservedModule) -> bool:
    return one.changed_share is not None and one.changed_share <= _FEW


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Compute tiles where the mask or the change says so."""
    from ridgeline.realtime.rewriting.regions import TileLayer, Tiling

    tile = option_number(options, "tile", 1)
    for name, module in find_modules(pipeline, option_text(options, "modules")).items():
        mask = hints_of(innermost(pipeline.code[name.split(":")[0]].call)).regions
        lay(module, Rank.REGIONS, TileLayer(mask, Tiling(tile=tile, margin=max(1, tile // 2))))
    return pipeline
