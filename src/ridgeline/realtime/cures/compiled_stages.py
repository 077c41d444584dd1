"""Modules run through `torch.compile`: operators fused, no dispatch between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.realtime.cures import CureCard, CureStage, Fit, named, option_text
from ridgeline.realtime.results import ROUNDING
from ridgeline.realtime.rewriting.layers import Rank, lay
from ridgeline.realtime.rewriting.modules import find_modules
from ridgeline.records.ledger import Options
from ridgeline.runtimes import runtime

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.observe import ObservedPipeline

CARD = CureCard(
    name="compiled-stages",
    title="torch.compile",
    costs="Compiles at the first frame of each shape, some ten seconds.",
    source="Ansel et al., PyTorch 2, ASPLOS 2024",
    stage=CureStage.PROGRAM,
    slot="program",
    freedom=ROUNDING,
)


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """Modules that matter take and give tensors, and there is a compiler."""
    missing = runtime("aoti").missing()
    if missing is not None:
        return Fit(reason=f"not tried: {missing}")
    found = seen.largest(Rank.PROGRAM)
    if not found:
        return Fit(reason="no module takes and gives tensors only")
    return Fit(({"modules": named(found)},))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Compile at the first call."""
    from ridgeline.realtime.rewriting.programs import ProgramLayer, compiled

    for module in find_modules(pipeline, option_text(options, "modules")).values():
        lay(module, Rank.PROGRAM, ProgramLayer(module, compiled))
    return pipeline
