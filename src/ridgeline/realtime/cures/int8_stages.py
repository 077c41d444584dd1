"""Modules in eight-bit integers, with ranges from the recorded frames (OpenVINO, ONNX Runtime).

It must be measured: BEVFormer-base runs slower in int8 than in fp16 (README of
DerryHub/BEVFormer_tensorrt: 6.7 against 7.3 frames per second on an RTX 3090).
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
    name="int8-stages",
    title="int8 with calibration",
    costs="Results differ in the second digit; ranges fit the frames they were taken from.",
    source="Jacob et al., Quantization and training of neural networks, CVPR 2018",
    stage=CureStage.PROGRAM,
    slot="program",
    freedom=0.1,
)
_RUNTIMES = ("openvino", "onnx")


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """Modules that matter take and give float32 tensors, and a runtime with int8 is there."""
    found = [one for one in seen.largest(Rank.PROGRAM) if one.dtypes == {"float32"}]
    if not found:
        return Fit(reason="no module takes and gives float32 tensors only")
    there = [name for name in _RUNTIMES if runtime(name).missing() is None]
    if not there:
        return Fit(reason=f"not tried: {runtime('openvino').missing()}")
    return Fit(tuple({"runtime": name, "modules": named(found)} for name in there))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Quantise once calls enough were seen."""
    import torch

    from ridgeline.realtime.rewriting.programs import CALIBRATION_CALLS, ProgramLayer, exporter

    make = exporter(option_text(options, "runtime"), "int8", torch.get_num_threads())
    for module in find_modules(pipeline, option_text(options, "modules")).values():
        lay(module, Rank.PROGRAM, ProgramLayer(module, make, CALIBRATION_CALLS))
    return pipeline
