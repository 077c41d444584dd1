"""One profile per cause: what the fault looks like once it is measured."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.diagnose.profiles import (
    STEP_SECONDS,
    clean_operators,
    gpu,
    hot,
    limits,
    op,
    profile,
    site,
    spread,
)

from ridgeline.diagnose.reading import Reading
from ridgeline.hardware.ceilings import Ceilings
from ridgeline.records import (
    Distribution,
    GraphBreak,
    MemorySplit,
    StepProfile,
    SyncPoint,
    TailFacts,
    UnusedGraph,
)
from ridgeline.records.script_facts import Habit

MS = 1e-3 * STEP_SECONDS / 0.1
DDP = {"wrapper": "DistributedDataParallel", "parameter_bytes": 40_000_000}
PINNED = {
    "host_to_device_pinned_bytes_per_second": 2e10,
    "host_to_device_pageable_bytes_per_second": 8e9,
}


def readings() -> dict[str, Reading]:
    """Cause → a reading in which it is the fault."""
    found = {cause: _reading([made]) for cause, made in {**on_cpu(), **on_gpu()}.items()}
    found["pageable-copies"] = _reading(
        [found["pageable-copies"].profile], limits("cuda", **PINNED)
    )
    found["straggler"] = _reading(stragglers())
    return found


def _reading(profiles: list[StepProfile], ceilings: Ceilings | None = None) -> Reading:
    device = profiles[0].models[0].device.split(":")[0]
    return Reading(profile=profiles[0], ranks=tuple(profiles), ceilings=ceilings or limits(device))


def a_tail(**changes: Any) -> TailFacts:
    """Four calls of forty take three times as long."""
    facts = TailFacts(
        slow_steps=4,
        excess_seconds=8 * STEP_SECONDS,
        early_share=0.1,
        phase_seconds={"forward": 8 * STEP_SECONDS},
        size_correlation=None,
    )
    return replace(facts, **changes)


def on_cpu() -> dict[str, StepProfile]:
    """Faults that a CPU shows."""
    steady = [2.0 - 0.01 * step for step in range(60)]
    return {
        "input-starved": profile(
            shares={"data": 0.6},
            loader={"fetch_seconds": 60 * MS, "fetch_cpu_seconds": 5 * MS, "wait_seconds": 60 * MS},
        ),
        "torchscript": profile(model={"scripted": True}),
        "worker-restarts": profile(
            shares={"data": 0.3},
            loader={"num_workers": 2, "restarts": 4, "start_seconds": 0.15, "wait_seconds": 1e-4},
        ),
        "host-python": profile(
            shares={"other": 0.4}, hot_lines=[hot(30, 0.25), hot(31, 0.04, leaf="torch.x")]
        ),
        "tiny-operators": profile(
            shares={"forward": 0.4},
            more=[op("mul", 0.2, bound="overhead", calls=3000, shapes="[8]")],
            operator_calls=3200.0,
        ),
        "sync-points": profile(
            shares={"other": 0.5},
            sync_points=[SyncPoint(kind="item", site=site(20), calls=3000, seconds=0.05)],
            hot_lines=[hot(20, 0.3)],
        ),
        "side-work": profile(
            shares={"other": 0.5},
            hot_lines=[hot(50, 0.3, leaf="copy.deepcopy"), hot(51, 0.3, leaf="torch.nn.x")],
            more=[op("clone", 0.5, phase="other", bound="memory")],
        ),
        "waiting-outside": profile(
            kind="inference", shares={"other": 8.0}, settings={"cpu_seconds": 90 * MS}
        ),
        "slowing-steps": profile(step_samples=[0.05 + 0.005 * step for step in range(20)]),
        "forced-gc": profile(
            shares={"other": 0.3},
            settings={"gc_seconds": 30 * MS},
            habits={"gc_collect": Habit(calls=1.0, site=site(40))},
        ),
        "page-faults": profile(
            shares={"forward": 0.5, "backward": 0.4},
            settings={"page_faults": 40_000.0, "kernel_seconds": 50 * MS, "num_threads": 2},
        ),
        "gc-pauses": profile(shares={"forward": 0.1}, settings={"gc_seconds": 10 * MS}),
        "latency-tail": profile(
            kind="inference",
            step_seconds=Distribution.of([STEP_SECONDS] * 36 + [3 * STEP_SECONDS] * 4),
            steps=40,
            settings={"gc_seconds": 15 * MS},
            tail=a_tail(),
        ),
        "save-in-loop": profile(
            shares={"other": 0.4}, habits={"save": Habit(calls=1.0, seconds=40 * MS, site=site(41))}
        ),
        "frequent-evaluation": profile(
            shares={"other": 0.8},
            habits={"evaluation": Habit(seconds=80 * MS, calls=3.2)},
        ),
        "no-grad-forwards": profile(
            shares={"other": 0.8},
            habits={
                "evaluation": Habit(seconds=80 * MS, calls=12.0),
                "no_grad_in_training": Habit(calls=12.0),
            },
        ),
        "argument-checks": profile(
            shares={"forward": 0.3},
            habits={"argument_check": Habit(calls=60.0, seconds=20 * MS, site=site(14))},
        ),
        "unused-graph": profile(
            shares={"forward": 0.4, "backward": 0.5},
            unused_graphs=[
                UnusedGraph(site=site(12), calls=1.0, forward_share=0.5, in_backward=True)
            ],
        ),
        "adjoint-solve": profile(
            shares={"backward": 0.6},
            habits={"ode_adjoint": Habit(calls=1.0, seconds=55 * MS, site=site(13))},
        ),
        "anomaly-mode": profile(
            shares={"backward": 0.3},
            settings={"anomaly_detection": True},
            more=[op("isnan", 0.25, phase="backward", bound="memory", calls=30)],
        ),
        "profiler-left-on": profile(
            settings={"autograd_profiler": True}, operator_calls=2000.0, operators=[]
        ),
        "deterministic-algorithms": profile(
            shares={"backward": 0.5},
            settings={"deterministic": True},
            more=[op("embedding_dense_backward", 0.5, phase="backward", bound="memory")],
        ),
        "fp32-matmul": profile(
            settings={"autocast_dtype": None}, operators=clean_operators("float32")
        ),
        "fp16-on-cpu": profile(shares={"forward": 0.5}, more=[op("mm", 0.5, dtype="float16")]),
        "float64-compute": profile(operators=clean_operators("float64")),
        "coordinate-matrix": profile(
            shares={"forward": 0.4},
            habits={"coordinate_product": Habit(calls=4.0, seconds=40 * MS, site=site(31))},
            more=[op("_sparse_mm", 0.4, flops=0.0)],
        ),
        "needless-checkpointing": profile(
            shares={"backward": 0.2},
            habits={"recompute": Habit(seconds=20 * MS, site=site(12))},
            more=[op("addmm", 0.2, phase="backward")],
        ),
        "unfused-optimizer": profile(
            shares={"optimizer": 0.4},
            optimizer={"fused": False, "num_parameters": 3_000_000, "state_bytes": 24_000_000},
            more=[
                op("addcdiv_", 0.4, phase="optimizer", bound="memory", calls=50, moved_bytes=4e8)
            ],
        ),
        "gradients-in-inference": profile(
            shares={"forward": 0.95, "backward": -0.63},
            settings={"records_gradients": True},
            kind="inference",
        ),
        "zero-grad-in-place": profile(
            shares={"other": 0.08, "backward": 0.1},
            optimizer={"zeroes_in_place": True},
            more=[
                op("zero_", 0.08, phase="other", bound="memory", shapes="[512,512]"),
                op("add_", 0.1, phase="backward", bound="memory"),
            ],
        ),
        "unfused-elementwise": profile(
            shares={"forward": 0.8},
            more=[op("mul", 0.8, bound="memory", calls=60, shapes="[64,512]", moved_bytes=8e8)],
        ),
        "unfused-attention": profile(
            shares={"forward": 0.6},
            habits={"math_attention": Habit(calls=4.0, site=site(15))},
            more=[
                op("_softmax", 0.3, bound="memory", shapes="[2,8,1024,1024]", flops=0.0),
                op(
                    "masked_fill",
                    0.2,
                    bound="memory",
                    flops=0.0,
                    shapes="[2,8,1024,1024],[1024,1024]",
                ),
                op("bmm", 0.1, shapes="[16,1024,64],[16,64,1024]"),
            ],
        ),
        "channels-first": profile(
            model={"has_convolutions": True},
            habits={"channels_first_convolution": Habit(calls=4.0)},
            shares={"forward": 0.5},
            more=[op("convolution", 0.5, shapes="[16,64,56,56],[64,64,3,3]", moved_bytes=2e8)],
        ),
        "padding": profile(loader={"padding_share": 0.5}),
        "small-batch": profile(
            shares={"forward": 0.6},
            settings={"forwards_per_step": 32.0, "backwards_per_step": 32.0},
            more=[
                op(
                    "_to_copy",
                    0.6,
                    bound="memory",
                    shapes="[512,512]",
                    dtype="float32",
                    flops=0.0,
                    moved_bytes=9e8,
                )
            ],
        ),
        "odd-dimensions": profile(
            shares={"forward": 0.6},
            model={"odd_dimensions": {"head.weight": 50257}},
            more=[op("mm", 0.6, shapes="[4096,768],[768,50257]", flops=4e9)],
        ),
        "few-threads": profile(settings={"num_threads": 1}),
        "crowded-threads": profile(
            settings={"num_threads": 2, "cpu_wait_seconds": 40 * MS, "peer_wait_seconds": 40 * MS}
        ),
        "many-threads": profile(settings={"num_threads": 16, "cpu_wait_seconds": 40 * MS}),
        "recompilation": profile(
            model={"compiled": True},
            shares={"forward": 0.5},
            settings={"recompiles": 12, "compile_seconds": 20 * 50 * MS},
        ),
        "graph-breaks": profile(
            model={"compiled": True},
            shares={"forward": 0.4},
            graph_breaks=[GraphBreak(reason="Tensor.item", site=site(9), count=12)],
            settings={"graph_compiles": 13},
            more=[op("tanh", 0.4, bound="memory", calls=20)],
        ),
        "memory-leak": profile(memory_growth_bytes_per_step=4_000_000.0),
        "retained-graph": profile(
            habits={"retain_graph": Habit(calls=1.0, site=site(44))},
            shares={"backward": 0.6},
            more=[op("mm", 0.6, phase="backward", flops=2.4e10)],
        ),
        "memory-limit": profile(
            peak_memory_bytes=15_500_000_000,
            memory=MemorySplit(
                weights_bytes=2_000_000_000,
                gradients_bytes=2_000_000_000,
                optimizer_bytes=1_000_000_000,
                activations_bytes=10_000_000_000,
                other_bytes=0,
            ),
        ),
        "non-finite": profile(losses=[2.0, 3.0, *[float("nan")] * 40], non_finite=40),
        "loss-spikes": profile(
            losses=[loss + (1.0 if step % 12 == 0 else 0.0) for step, loss in enumerate(steady)],
            loader={"num_batches": 12},
        ),
        "missing-no-sync": profile(
            world_size=2,
            model=DDP,
            shares={"communication": 0.4},
            settings={"backwards_per_step": 4.0, "forwards_per_step": 4.0},
            habits={"collective": Habit(bytes=160_000_000.0)},
        ),
        "find-unused-parameters": profile(
            world_size=2,
            model={**DDP, "ddp_find_unused": True, "num_parameter_tensors": 400},
            shares={"forward": 0.15},
            more=[op("relu", 0.03, bound="memory", calls=2000, flops=0.0)],
        ),
        "exposed-communication": profile(
            world_size=2,
            model=DDP,
            shares={"communication": 0.4},
            habits={"collective": Habit(bytes=40_000_000.0)},
        ),
    }


def on_gpu() -> dict[str, StepProfile]:
    """Faults that only a GPU shows."""
    float32 = clean_operators("float32")
    return {
        "tf32-off": gpu(settings={"matmul_precision": "highest"}, operators=float32),
        "cudnn-autotuning": gpu(
            model={"has_convolutions": True, "channels_last": True},
            settings={"cudnn_benchmark": False},
            shares={"forward": 1.5},
            more=[op("convolution", 1.5, shapes="[16,64,56,56],[64,64,3,3]")],
        ),
        "empty-cache": gpu(
            shares={"other": 0.3},
            habits={"empty_cache": Habit(calls=1.0, seconds=30 * MS)},
        ),
        "pageable-copies": gpu(shares={"copy": 0.3}, habits={"pageable_copy": Habit(calls=2.0)}),
    }


def stragglers() -> list[StepProfile]:
    """Two ranks; the second makes its batches more slowly, the first waits for it."""
    fast = profile(world_size=2, model=DDP, shares={"communication": 0.3})
    slow = profile(world_size=2, model=DDP, shares={"data": 0.3})
    phases = {**slow.phases, "communication": spread(0.0)}
    return [fast, replace(slow, rank=1, phases=phases)]
