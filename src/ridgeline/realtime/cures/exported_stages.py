"""Modules answered by another runtime in float32: ONNX Runtime, OpenVINO, AOTInductor."""

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
    name="exported-stages",
    title="Another runtime, float32",
    costs="A second copy of the weights, a conversion at start, a dependency.",
    source="documentation of the runtimes; see `ridgeline export`",
    stage=CureStage.PROGRAM,
    slot="program",
    freedom=ROUNDING,
)
_RUNTIMES = ("openvino", "onnx", "aoti")


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """Modules that matter take and give tensors, and a runtime is installed."""
    found = seen.largest(Rank.PROGRAM)
    if not found:
        return Fit(reason="no module takes and gives tensors only")
    missing = {name: runtime(name).missing() for name in _RUNTIMES}
    there = [name for name, lacks in missing.items() if lacks is None]
    if not there:
        return Fit(reason="not tried: " + "; ".join(filter(None, missing.values())))
    return Fit(tuple({"runtime": name, "modules": named(found)} for name in there))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Export at the first call."""
    import torch

    from ridgeline.realtime.rewriting.programs import ProgramLayer, exporter

    make = exporter(option_text(options, "runtime"), "fp32", torch.get_num_threads())
    for module in find_modules(pipeline, option_text(options, "modules")).values():
        lay(module, Rank.PROGRAM, ProgramLayer(module, make))
    return pipeline
