"""Profiles with and without the faults that techniques cure."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.report.records import (
    a_loader,
    a_model,
    a_profile,
    a_site,
    an_operator,
    an_optimizer,
    neutral,
    some_settings,
)

from ridgeline.hardware.ceilings import Ceilings
from ridgeline.records import Finding, HotLine, Site, StepProfile, UnusedGraph
from ridgeline.records.script_facts import Habit
from ridgeline.techniques import Context

STEP_SECONDS = 0.1
_SCRIPT = Path(__file__).with_name("habits.py")
STACKED = Site(
    file=str(_SCRIPT),
    line=1 + _SCRIPT.read_text().split("torch.stack([series")[0].count("\n"),
    function="stacked",
)
"""Where slices are stacked, in a function of its own."""
FOLLOWED = Site(
    file=str(_SCRIPT),
    line=1 + _SCRIPT.read_text().split("followed(x)")[0].count("\n"),
    function="main",
)
"""Where a model is called that no optimizer steps."""
FED = {"fetch_seconds": 1e-4, "wait_seconds": 1e-4}


def ceilings(device: str = "cpu", **peaks: float) -> Ceilings:
    rates = {"fp32": 1e11, "bf16": 2e11, "fp32_medium": 1.5e11, **peaks}
    made: Ceilings = neutral(
        Ceilings,
        device=device,
        matmul_flops_per_second=rates,
        bandwidth_bytes_per_second=2e10,
        num_threads=2,
    )
    return made


def operator(name: str, share: float, **changes: Any) -> Any:
    """An operator that takes `share` of the step."""
    made = an_operator(name, "[8,8]", "forward", share * STEP_SECONDS, 1e6, 1e6)
    return replace(made, **changes)


def context(
    *,
    model: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    loader: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    phases: dict[str, float] | None = None,
    operators: dict[str, float] | None = None,
    dtype: str = "bfloat16",
    limits: Ceilings | None = None,
    findings: tuple[Finding, ...] = (),
    **changes: Any,
) -> Context:
    """A clean script on two cores: fused, tuned, fed; `changes` put faults into it."""
    shares = {"data": 0.001, "copy": 0.0, "forward": 0.33, "backward": 0.65, "optimizer": 0.01,
              "communication": 0.0, "other": 0.009, **(phases or {})}  # fmt: skip
    steady = a_profile(STEP_SECONDS).step_seconds
    figures = ("mean", "min", "max", "p50", "p95", "p99")
    profile: StepProfile = replace(
        a_profile(STEP_SECONDS),
        step_seconds=replace(steady, **dict.fromkeys(figures, STEP_SECONDS)),
        phases={
            name: replace(steady, **dict.fromkeys(figures, share * STEP_SECONDS))
            for name, share in shares.items()
        },
        models=[replace(a_model(), **{"repeated_block": None, "num_repeated": 0, **(model or {})})],
        optimizers=[replace(an_optimizer(), **{"fused": True, **(optimizer or {})})],
        loaders=[replace(a_loader(), **{**FED, **(loader or {})})],
        settings=replace(
            some_settings(),
            **{"autocast_dtype": "bfloat16", "matmul_precision": "high",
               **(settings or {})},
        ),
        operators=[
            operator(name, share, dtype=dtype)
            for name, share in (operators or {"aten::mm": 0.97}).items()
        ],
        small_operator_share=0.01,
        **{"habits": {}, **changes},
    )  # fmt: skip
    return Context(profile=profile, findings=findings, ceilings=limits or ceilings())


CUDA = {"device": "cuda:0"}
DDP = {"wrapper": "DistributedDataParallel", "parameter_bytes": 400 << 20}
MEMORY_LIMIT = Finding(
    cause="memory-limit", share=1.0, gain_low=1.0, gain_high=1.1, confidence=0.9, summary="full",
    evidence={}, where=[], cure="…",
)  # fmt: skip


def loss_over_words(name: str, share: float) -> Any:
    """An operator of a loss over 50,000 classes."""
    return operator(name, share, shapes="[700,50000]", dtype="float32")


@functools.cache
def faulty() -> dict[str, Context]:
    """For every technique a profile on which it applies."""
    float32 = {"operators": {"aten::mm": 0.6}, "dtype": "float32"}
    highest = {"autocast_dtype": None, "matmul_precision": "highest"}
    gpu = ceilings("cuda", tf32=8e11, fp16=8e11)
    return {
        "activation-checkpointing": context(
            model={"repeated_block": "Block", "num_repeated": 6}, findings=(MEMORY_LIMIT,)
        ),
        "attention-backend": context(
            habits={"math_attention": Habit(calls=4.0, site=a_site(55))},
            operators={"aten::bmm": 0.3, "aten::_softmax": 0.2},
        ),
        "fused-attention": context(
            habits={
                "math_attention": Habit(
                    calls=4.0, site=Site(file="model.py", line=3, function="Head.forward")
                )
            },
            operators={"aten::bmm": 0.3, "aten::_softmax": 0.2},
        ),
        "bf16-autocast": context(settings=highest, **float32),
        "channels-last": context(
            model={"has_convolutions": True},
            habits={"channels_first_convolution": Habit(calls=4.0)},
            operators={"aten::convolution": 0.8},
        ),
        "chunked-cross-entropy": replaced(
            context(), operators=[loss_over_words("aten::_log_softmax", 0.2)]
        ),
        "compile": context(
            model={"repeated_block": "Block", "num_repeated": 6},
            operators={"aten::mm": 0.4, "aten::gelu": 0.4},
        ),
        "compressed-rows": context(
            habits={"coordinate_product": Habit(calls=4.0, seconds=0.02, site=a_site(33))}
        ),
        **dict.fromkeys(
            ("aot-inductor", "onnx-runtime", "openvino"),
            context(kind="inference", phases={"forward": 0.95}),
        ),
        "cuda-graphs": replaced(context(model=CUDA), small_operator_share=0.6),
        "cudnn-benchmark": context(model=CUDA, operators={"aten::convolution": 0.8}),
        "ddp-bucket-view": context(model=DDP, phases={"communication": 0.2}, world_size=2),
        "ddp-buckets": context(model=DDP, phases={"communication": 0.2}, world_size=2),
        "ddp-no-sync": context(
            model=DDP,
            phases={"communication": 0.2},
            settings={"backwards_per_step": 4.0}, habits={"collective": Habit(calls=4.0)},
            world_size=2,
        ),
        "ddp-no-unused": context(model={**DDP, "ddp_find_unused": True}),
        "ddp-static-graph": context(model={**DDP, "ddp_find_unused": True}),
        "determinism-off": context(settings={"deterministic": True}),
        "device-prefetch": context(model=CUDA, phases={"copy": 0.1}),
        "foreach-optimizer": context(
            optimizer={"name": "RMSprop", "fused": False, "supports_fused": False,
                       "num_parameters": 5200},
            phases={"optimizer": 0.2},
        ),
        "fp16-autocast": context(
            model=CUDA, settings=highest, limits=ceilings("cuda", fp16=8e11, bf16=1e11), **float32
        ),
        "fused-kernels": context(model=CUDA, operators={"aten::mm": 0.6, "aten::silu": 0.2}),
        "fused-optimizer": context(optimizer={"fused": False}, phases={"optimizer": 0.2}),
        "gc-freeze": context(settings={"gc_seconds": 0.01}),
        "gathered-slices": replaced(
            context(), hot_lines=[HotLine(site=STACKED, phase="other", share=0.4, leaf="")]
        ),
        "inference-mode": context(
            settings={"records_gradients": True},
            kind="inference",
            phases={"forward": 0.98, "backward": 0.0, "optimizer": 0.0},
        ),
        "length-buckets": replaced(
            context(settings={"padding_share": 0.4}),
            operators=[operator("aten::mm", 0.3, calls=share) for share in (1 / 3, 0.5)],
        ),
        "loader-workers": context(
            loader={"fetch_seconds": 0.05, "wait_seconds": 0.05}, phases={"data": 0.5}
        ),
        "malloc-retain": context(settings={"page_faults": 40_000.0, "kernel_seconds": 0.04}),
        "matmul-precision": context(settings=highest, **float32),
        "micro-batch": replaced(
            context(
                settings={"backwards_per_step": 4.0, "forwards_per_step": 4.0,
                          "stated_sizes": {"arguments:accum_steps": 4, "arguments:batch_size": 8}},
            ),
            samples_per_second=32 / STEP_SECONDS, small_operator_share=0.6,
            device_memory_bytes=64 << 30,
        ),
        "nccl-settings": context(
            model={**DDP, **CUDA}, phases={"communication": 0.2}, world_size=2
        ),
        "no-adjoint": context(
            habits={"ode_adjoint": Habit(calls=1.0, seconds=0.06, site=a_site(9))}
        ),
        "no-argument-checks": context(
            habits={"argument_check": Habit(calls=60.0, seconds=0.02, site=a_site(14))}
        ),
        "no-unused-graph": context(
            unused_graphs=[
                UnusedGraph(site=FOLLOWED, calls=1.0, forward_share=0.4, in_backward=True)
            ]
        ),
        "no-anomaly": context(settings={"anomaly_detection": True}),
        "no-checkpointing": context(
            habits={"recompute": Habit(seconds=0.02, site=a_site(21))}
        ),
        "no-empty-cache": context(model=CUDA, habits={"empty_cache": Habit(calls=1.0)}),
        "no-forced-gc": context(
            settings={"gc_seconds": 0.01}, habits={"gc_collect": Habit(calls=1.0)}
        ),
        "no-profiler": context(settings={"autograd_profiler": True}),
        "passive-threads": context(settings={"cpu_wait_seconds": 0.05, "peer_wait_seconds": 0.05}),
        "persistent-workers": context(
            loader={"num_workers": 2, "restarts": 4, "start_seconds": 0.2}, phases={"data": 0.2}
        ),
        "pinned-memory": context(
            model=CUDA, phases={"copy": 0.1}, habits={"pageable_copy": Habit(calls=2.0)}, limits=gpu
        ),
        "samples-in-memory": context(
            loader={"fetch_seconds": 0.05, "wait_seconds": 0.05}, phases={"data": 0.5}
        ),
        "set-to-none": context(optimizer={"zeroes_in_place": True}),
        "sixteen-bit-dropout": context(operators={"aten::bernoulli_": 0.2}),
        "thread-binding": FAULTY_BINDING,
        "thread-count": context(settings={"num_threads": 1}),
    }  # fmt: skip


FAULTY_BINDING = context(settings={"cpu_seconds": 0.19})
"""Two threads compute nearly all the time."""


def replaced(given: Context, **changes: Any) -> Context:
    return Context(
        profile=replace(given.profile, **changes), findings=given.findings, ceilings=given.ceilings
    )
