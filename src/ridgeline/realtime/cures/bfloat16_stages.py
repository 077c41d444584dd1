"""Modules computed in bfloat16: eight bits of mantissa, half the memory, matrix units if any.

Sums are in float32 inside of each operator; the module takes and gives float32 as before. By
itself, or through OpenVINO, which fuses as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.realtime.cures import CureCard, CureStage, Fit, named, option_text
from ridgeline.realtime.rewriting.layers import Rank, lay
from ridgeline.realtime.rewriting.modules import find_modules
from ridgeline.records.ledger import Options
from ridgeline.runtimes import runtime

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.observe import ObservedPipeline

CARD = CureCard(
    name="bfloat16-stages",
    title="bfloat16",
    costs="Results differ in the third digit.",
    source="Kalamkar et al., A study of BFLOAT16 for deep learning training, 2019",
    stage=CureStage.PROGRAM,
    slot="program",
    freedom=0.03,
)


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """Modules that matter take and give float32 tensors."""
    found = [one for one in seen.largest(Rank.PROGRAM) if "float32" in one.dtypes]
    if not found:
        return Fit(reason="no module takes and gives float32 tensors only")
    through = ["openvino", "eager"] if runtime("openvino").missing() is None else ["eager"]
    return Fit(tuple({"runtime": name, "modules": named(found)} for name in through))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Convert at the first call."""
    import torch

    from ridgeline.realtime.rewriting.programs import ProgramLayer, exporter, in_bfloat16

    name = option_text(options, "runtime")
    eager = name == "eager"
    make = in_bfloat16 if eager else exporter(name, "bf16", torch.get_num_threads())
    for module in find_modules(pipeline, option_text(options, "modules")).values():
        lay(module, Rank.PROGRAM, ProgramLayer(module, make))
    return pipeline
