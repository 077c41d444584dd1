"""The scripts that we ship, on a real GPU: what is measured adds up, what is applied is right.

Their twins without a GPU are `tests/test_examples.py` and `tests/techniques/`. Run by
`bench/gpu/run.sh`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ridgeline.measure.live.conductor import Conductor
from ridgeline.measure.live.profile import measure
from ridgeline.measure.live.windows import MeasurementPlan
from ridgeline.measure.probe import ceilings
from ridgeline.measure.wire import Applied, Session
from ridgeline.techniques import Context, options_of, technique
from ridgeline.tune.stack import ENTRY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(240),
]
EXAMPLES = Path(__file__).parents[2] / "examples"
GPT = [str(EXAMPLES / "train_gpt.py"), "--steps", "400"]
LOADER = [str(EXAMPLES / "train_input_bound.py"), "--steps", "400"]
STEPS = 12
APPLIED = {
    "bf16-autocast": (GPT, {}, 3e-2),
    "fp16-autocast": (GPT, {}, 3e-2),
    "matmul-precision": (GPT, {"precision": "high"}, 1e-2),
    "fused-optimizer": (GPT, {}, 1e-3),
    "compile": (GPT, {"mode": "default"}, 1e-2),
    "cuda-graphs": (GPT, {}, 1e-2),
    "pinned-memory": (LOADER, {}, 1e-3),
    "device-prefetch": (LOADER, {}, 1e-3),
    "channels-last": ([str(EXAMPLES / "train_cnn.py"), "--steps", "400"], {}, 1e-2),
}
"""Technique → script, options, relative difference of the losses that it may cause."""


def losses_of(command: list[str], stack: list[Applied]) -> tuple[list[float], dict[str, str]]:
    with Conductor(command, Session(stack=stack, fix_seed=True), entry=ENTRY) as run:
        report = run.steps(STEPS)[0]
    return report.losses, report.applied


@pytest.mark.parametrize("name", APPLIED)
def test_a_technique_takes_effect_on_a_gpu_and_keeps_its_equivalence(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, options, tolerance = APPLIED[name]
    if name == "channels-last":  # another layout takes other kernels, whose TF32 rounds otherwise
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    plain, _ = losses_of(command, [])
    found, applied = losses_of(command, [Applied(technique=name, options=options)])
    assert name in applied
    assert len(found) == len(plain) > 4
    assert found == pytest.approx(plain, rel=tolerance)


def test_phases_memory_and_mfu_add_up_on_a_gpu() -> None:
    peaks = ceilings(device="cuda", quick=True)
    profile = measure(GPT, MeasurementPlan(steps=20, budget_seconds=90), ceilings=peaks)[0]
    total = sum(phase.mean for phase in profile.phases.values())
    assert total == pytest.approx(profile.step_seconds.mean, rel=1e-6)
    assert profile.mfu is not None
    assert 0 < profile.mfu < 1
    assert 0 < profile.peak_memory_bytes < profile.device_memory_bytes
    assert any(op.seconds > 0 for op in profile.operators)
    assert profile.models[0].device.startswith("cuda")


def test_float32_matmuls_are_found_on_a_gpu_and_bfloat16_is_offered() -> None:
    peaks = ceilings(device="cuda", quick=True)
    profile = measure(GPT, MeasurementPlan(steps=20, budget_seconds=90), ceilings=peaks)[0]
    context = Context(profile=profile, ceilings=peaks)
    module = technique("bf16-autocast")
    assert module.applies(context).ok
    assert module.predict(context, options_of(module, context)[0]).high > 1
