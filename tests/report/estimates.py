"""Estimates to draw: what the planner would return, with numbers chosen to be told apart."""

from __future__ import annotations

import msgspec

from ridgeline.cost.collective_volume import Fabric
from ridgeline.cost.pipeline_schedule import ChunkSeconds, Timeline, simulate
from ridgeline.cost.scaling import DataParallelStep, ScalingCurve, scaling_curve
from ridgeline.records.estimate import Estimate, MemoryEstimate, StageMemory
from ridgeline.records.layout import Layout, Schedule

CAPACITY_BYTES = 80e9


def a_layout(**changes: object) -> Layout:
    usual = {"dp": 8, "fsdp": 8, "zero": 1, "tp": 2, "sp": True, "pp": 4, "global_batch": 64}
    return Layout(**{**usual, **changes})  # type: ignore[arg-type]


def a_memory(scale: float = 1.0, num_stages: int = 4) -> MemoryEstimate:
    stages = []
    for stage in range(num_stages):
        terms = {
            "weights": 8e9 * scale,
            "gradients": 16e9 * scale,
            "optimizer": 6e9 * scale,
            "activations": (num_stages - stage) * 5e9 * scale,
            "logits": 4e9 * scale if stage == num_stages - 1 else 0.0,
        }
        stages.append(StageMemory(stage=stage, terms=terms, total_bytes=sum(terms.values())))
    peak = max(stage.total_bytes for stage in stages)
    return MemoryEstimate(
        stages=stages,
        peak_bytes=peak,
        capacity_bytes=CAPACITY_BYTES,
        verdict="fits" if peak < 0.92 * CAPACITY_BYTES else "oom",
    )


def an_estimate(step_seconds: float = 2.0, memory: float = 1.0, **changes: object) -> Estimate:
    return Estimate(
        layout=a_layout(**changes),
        step_seconds=step_seconds,
        interval=(step_seconds * 0.87, step_seconds * 1.15),
        tokens_per_second_per_gpu=4096 / step_seconds,
        mfu=0.9 / step_seconds,
        hfu=0.95 / step_seconds,
        flops_convention="6 N + 6 L a d s per token, causal half",
        trained_parameters=8e9,
        memory=a_memory(memory),
        breakdown={
            "matmuls": 0.6 * step_seconds,
            "attention": 0.15 * step_seconds,
            "tensor_communication": 0.1 * step_seconds,
            "bubble": 0.15 * step_seconds,
            "offload": 0.0,
        },
        bottleneck="matmuls",
        assumed=["network: 400 Gb/s per device is typical of H100 nodes"],
    )


def some_estimates() -> list[Estimate]:
    return [
        an_estimate(),
        an_estimate(1.6, 1.4, tp=1, sp=False),
        an_estimate(2.6, 0.6, recompute="full"),
        an_estimate(2.8, 0.9, micro_batch=2),
    ]


def a_timeline(schedule: Schedule = "1f1b", num_stages: int = 4, num_chunks: int = 1) -> Timeline:
    return simulate(
        schedule,
        num_stages=num_stages,
        num_microbatches=2 * num_stages,
        num_chunks=num_chunks,
        p2p_seconds=0.01,
        seconds=ChunkSeconds(
            forward_seconds=0.1, backward_input_seconds=0.1, backward_weight_seconds=0.1
        ),
    )


def some_curves() -> list[ScalingCurve]:
    step = DataParallelStep(
        forward_seconds=0.1, backward_seconds=0.2, fixed_seconds=0.01, gradient_bytes=14e9
    )
    fabric = Fabric(domain_size=8, domain_bytes_per_second=350e9, network_bytes_per_second=40e9)
    counts = [1, 8, 16, 64, 256]
    return [
        scaling_curve("weak scaling", "weak", step, fabric, counts),
        scaling_curve("strong scaling", "strong", step, fabric, counts),
    ]


def renamed(estimate: Estimate, term: str) -> Estimate:
    """The same with a term of this name, as only a user's own file could have."""
    breakdown = {**estimate.breakdown, term: 0.1}
    stage = msgspec.structs.replace(estimate.memory.stages[0], terms={term: 1e9})
    memory = msgspec.structs.replace(estimate.memory, stages=[stage])
    return msgspec.structs.replace(
        estimate, breakdown=breakdown, bottleneck=term, assumed=[term], memory=memory
    )
