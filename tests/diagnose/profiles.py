"""Profiles of clean scripts on a CPU and on a GPU, and what a fault makes of them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.report.records import (
    a_loader,
    a_model,
    a_profile,
    a_site,
    an_optimizer,
    neutral,
    some_settings,
)

from ridgeline.diagnose.reading import Reading
from ridgeline.hardware.ceilings import Ceilings
from ridgeline.records import Distribution, HotLine, MemorySplit, Operator, Site, StepProfile

STEP_SECONDS = 0.1
SHARES = {
    "data": 0.002, "copy": 0.0, "forward": 0.33, "backward": 0.63, "optimizer": 0.03,
    "communication": 0.0, "other": 0.008,
}  # fmt: skip
SCRIPT = "train.py"


def limits(device: str = "cpu", **changes: Any) -> Ceilings:
    """100 GFLOP/s in float32, four times that in bfloat16, 20 GB/s, 1 µs to start an operator."""
    rates = {"fp64": 2.5e10, "fp32": 1e11, "fp32_medium": 2.5e11, "bf16": 4e11, "fp16": 2e9}
    if device == "cuda":
        rates = {"fp64": 5e10, "fp32": 1e11, "tf32": 4e11, "bf16": 8e11, "fp16": 8e11}
    made: Ceilings = neutral(
        Ceilings,
        **{
            "device": device,
            "matmul_flops_per_second": rates,
            "bandwidth_bytes_per_second": 2e10,
            "dispatch_seconds": 1e-6,
            "num_threads": 4,
            **changes,
        },
    )
    return made


def site(line: int, function: str = "main") -> Site:
    """A line of the script."""
    return Site(file=SCRIPT, line=line, function=function)


def spread(seconds: float) -> Distribution:
    """Every step took the same."""
    return Distribution.of([seconds] * 4)


def op(
    name: str,
    share: float,
    *,
    phase: str = "forward",
    shapes: str = "[512,512],[512,512]",
    dtype: str = "bfloat16",
    bound: str = "compute",
    calls: float = 4.0,
    moved_bytes: float = 1e6,
    flops: float = 1e9,
) -> Operator:
    """An operator that takes `share` of the step."""
    return Operator(
        name=f"aten::{name}",
        shapes=shapes,
        dtype=dtype,
        phase=phase,
        calls=calls,
        seconds=share * STEP_SECONDS,
        flops=flops,
        bytes=moved_bytes,
        bound=bound,
        limit_seconds=0.5 * share * STEP_SECONDS,
    )


def clean_operators(dtype: str = "bfloat16") -> list[Operator]:
    """Nearly all of forward and backward is matrix products."""
    return [
        op("addmm", 0.30, dtype=dtype, flops=4e9),
        op("relu", 0.02, bound="memory", shapes="[512,512]", flops=0.0),
        op("mm", 0.59, phase="backward", dtype=dtype, calls=8, flops=8e9),
        op("threshold_backward", 0.03, phase="backward", bound="memory", flops=0.0),
        op("_fused_adamw_", 0.03, phase="optimizer", bound="memory", calls=1, flops=0.0,
           shapes="[512,512]", dtype="float32", moved_bytes=3e7),
        op("_log_softmax", 0.005, phase="other", bound="memory", shapes="[512,32]", flops=0.0),
    ]  # fmt: skip


def profile(
    *,
    model: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    loader: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    shares: dict[str, float] | None = None,
    more: list[Operator] | None = None,
    **changes: Any,
) -> StepProfile:
    """A clean training script; the keywords put a fault into it.

    `shares` adds phases to the step, in units of the clean step.
    """
    extra = shares or {}
    phases = {name: STEP_SECONDS * (share + extra.get(name, 0.0)) for name, share in SHARES.items()}
    step = sum(phases.values())
    figures: dict[str, Any] = {
        "step_seconds": spread(step),
        "phases": {name: spread(seconds) for name, seconds in phases.items()},
        "step_samples": [step] * 20,
        "steps": 20,
        "operators": [*clean_operators(), *(more or [])],
        "operator_calls": 60.0,
        "sync_points": [],
        "hot_lines": [],
        "graph_breaks": [],
        "models": [replace(a_model(), **{"has_attention": False, **(model or {})})],
        "optimizers": [replace(an_optimizer(), **{"fused": True, **(optimizer or {})})],
        "loaders": [
            replace(a_loader(), **{"fetch_seconds": 2e-4, "wait_seconds": 2e-4, **(loader or {})})
        ],
        "habits": {},
        "settings": replace(
            some_settings(),
            **{
                "num_threads": 4,
                "cpu_count": 4,
                "autocast_dtype": "bfloat16",
                **(settings or {}),
            },
        ),
        "peak_memory_bytes": 2_000_000_000,
        "device_memory_bytes": 16_000_000_000,
        "memory": MemorySplit(
            weights_bytes=100_000_000,
            gradients_bytes=100_000_000,
            optimizer_bytes=200_000_000,
            activations_bytes=1_600_000_000,
            other_bytes=0,
        ),
        "losses": [2.0 - 0.01 * step for step in range(60)],
        "samples_per_second": 512 / step,
        **changes,
    }
    return a_profile(step, **figures)


def gpu(**changes: Any) -> StepProfile:
    """The same on a GPU, whose cudnn was told to look for the fastest algorithms."""
    model = {"device": "cuda:0", **changes.pop("model", {})}
    settings = {
        "cudnn_benchmark": True, "matmul_precision": "high", **changes.pop("settings", {})
    }  # fmt: skip
    return profile(model=model, settings=settings, **changes)


def reading(made: StepProfile, *others: StepProfile, ceilings: Ceilings | None = None) -> Reading:
    """What rules get to see."""
    device = made.models[0].device.split(":")[0] if made.models else "cpu"
    return Reading(profile=made, ranks=(made, *others), ceilings=ceilings or limits(device))


def hot(line: int, share: float, phase: str = "other", leaf: str = "__main__.work") -> HotLine:
    """The host was seen on a line for `share` of the step."""
    return HotLine(site=site(line), phase=phase, share=share, leaf=leaf)


__all__ = ["a_site", "gpu", "hot", "limits", "op", "profile", "reading", "site", "spread"]
