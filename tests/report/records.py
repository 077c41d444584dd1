"""Plausible records to draw: a small GPT trained on a laptop's CPU, and what tuning it gave."""

from __future__ import annotations

import functools
from typing import TypeVar

import msgspec
import numpy as np

from ridgeline.records import (
    Distribution,
    Environment,
    Finding,
    GraphBreak,
    HotLine,
    Ledger,
    LedgerRow,
    LoaderFacts,
    LossCheck,
    MemoryPoint,
    MemorySplit,
    ModelFacts,
    Operator,
    OptimizerFacts,
    Settings,
    Site,
    StepProfile,
    SyncPoint,
)
from ridgeline.records.script_facts import Habit

T = TypeVar("T", bound=msgspec.Struct)

PEAK_FLOPS_PER_SECOND = {"float32": 170e9, "bfloat16": 360e9}
BANDWIDTH_BYTES_PER_SECOND = 21e9
PHASE_SHARES = {
    "data": 0.031,
    "copy": 0.0,
    "forward": 0.262,
    "backward": 0.521,
    "optimizer": 0.142,
    "communication": 0.0,
    "other": 0.044,
}


def neutral(record: type[T], /, **known: object) -> T:
    """A record whose unnamed required fields say "none seen": the report shows none of them."""
    return record(**_neutral_values(record) | known)


@functools.cache
def _neutral_values(record: type[msgspec.Struct]) -> dict[str, object]:
    plain = {bool: False, int: 0, float: 0.0, str: ""}
    required = [field for field in msgspec.structs.fields(record) if field.required]
    return {field.encode_name: plain.get(field.type) for field in required}


def an_environment(**changes: object) -> Environment:
    environment = neutral(
        Environment,
        command=["examples/train_gpt.py", "--layers", "4", "--batch-size", "12"],
        cwd="/home/ada/gpt",
        date="2026-11-20T19:31:07Z",
        host_cpu="AMD EPYC 9R14",
        cpu_count=2,
        device="AMD EPYC 9R14",
        python="3.11.7",
        torch="2.13.0+cpu",
        ridgeline="0.1.0",
        variables={"OMP_NUM_THREADS": "2"},
    )
    return msgspec.structs.replace(environment, **changes)


def step_samples(median_seconds: float, *, count: int = 60, seed: int = 0) -> list[float]:
    """Log-normal noise with a slow evaluation every 25 steps."""
    generator = np.random.default_rng(seed)
    steps = median_seconds * np.exp(0.02 * generator.normal(size=count))
    steps[24::25] *= 1.6
    return [float(seconds) for seconds in steps]


def an_operator(
    name: str,
    shapes: str,
    phase: str,
    seconds: float,
    flops: float,
    moved_bytes: float,
    *,
    calls: float = 4.0,
    dtype: str = "float32",
) -> Operator:
    compute = flops / PEAK_FLOPS_PER_SECOND.get(dtype, 170e9)
    memory = moved_bytes / BANDWIDTH_BYTES_PER_SECOND
    limit = min(max(compute, memory), 0.93 * seconds)
    bound = "compute" if compute > memory else "memory"
    return neutral(
        Operator,
        name=name,
        shapes=shapes,
        dtype=dtype,
        phase=phase,
        calls=calls,
        seconds=seconds,
        flops=flops,
        bytes=moved_bytes,
        bound="overhead" if seconds / calls < 12e-6 else bound,
        limit_seconds=limit,
    )


def operators(scale: float = 1.0, dtype: str = "float32") -> list[Operator]:
    moved_scale = 0.5 if dtype == "bfloat16" else 1.0
    rows = [
        ("aten::mm", "[3072, 256] × [256, 1024]", "backward", 0.0412, 3.22e9, 1.7e8, 8),
        ("aten::addmm", "[3072, 256] × [256, 768]", "forward", 0.0321, 4.83e9, 2.1e8, 4),
        ("aten::_fused_adamw_", "[240 tensors]", "optimizer", 0.0212, 1.3e8, 3.0e8, 1),
        ("aten::mm", "[3072, 1024] × [1024, 256]", "backward", 0.0298, 3.22e9, 1.7e8, 8),
        ("aten::bmm", "[144, 256, 64] × [144, 64, 256]", "forward", 0.0183, 2.42e9, 3.4e8, 4),
        ("aten::gelu_backward", "[12, 256, 1024]", "backward", 0.0174, 4.4e7, 1.5e8, 4),
        ("aten::_softmax", "[12, 12, 256, 256]", "forward", 0.0141, 4.7e7, 7.5e7, 4),
        ("aten::native_layer_norm", "[12, 256, 256]", "forward", 0.0052, 2.5e7, 5.6e7, 9),
        ("aten::copy_", "[12, 256, 256]", "forward", 0.0048, 0.0, 5.0e7, 12),
        ("aten::add_", "[256]", "optimizer", 0.0009, 6.1e4, 7.4e5, 120),
        ("aten::embedding", "[512, 256], [12, 256]", "forward", 0.0007, 0.0, 6.3e6, 1),
    ]
    return [
        an_operator(
            name,
            shapes,
            phase,
            seconds * scale,
            flops,
            moved * moved_scale,
            calls=calls,
            dtype=dtype,
        )
        for name, shapes, phase, seconds, flops, moved, calls in rows
    ]


def memory_timeline(peak_bytes: int, step_seconds: float) -> list[MemoryPoint]:
    """Up through the forward pass, down through the backward pass."""
    held = int(0.16 * peak_bytes)
    points = []
    for index in range(240):
        part = index / 239
        if part < 0.31:
            phase, size = "forward", held + (peak_bytes - held) * part / 0.31
        elif part < 0.84:
            phase, size = "backward", held + (peak_bytes - held) * (0.84 - part) / 0.53
        else:
            phase, size = "optimizer", held * 1.2
        wiggle = 0.015 * peak_bytes * (index % 3 - 1)
        points.append(
            neutral(
                MemoryPoint,
                seconds=part * step_seconds,
                bytes=int(min(peak_bytes, max(held, size + wiggle))),
                phase=phase,
            )
        )
    return points


def losses(seed: int, count: int = 120) -> list[float]:
    generator = np.random.default_rng(seed)
    curve = 1.9 + 3.6 * np.exp(-np.arange(count) / 28)
    return [float(loss) for loss in curve + 0.04 * generator.normal(size=count)]


def a_profile(median_seconds: float = 0.2134, **changes: object) -> StepProfile:
    return msgspec.structs.replace(_made_profile(median_seconds), **changes)


@functools.cache
def _made_profile(median_seconds: float) -> StepProfile:
    samples = step_samples(median_seconds)
    flops = sum(operator.flops for operator in operators())
    limit = sum(operator.limit_seconds for operator in operators())
    return neutral(
        StepProfile,
        kind="training",
        steps=len(samples),
        step_seconds=Distribution.of(samples),
        phases={
            name: Distribution.of([share * seconds for seconds in samples])
            for name, share in PHASE_SHARES.items()
        },
        samples_per_second=12 / median_seconds,
        tokens_per_second=12 * 256 / median_seconds,
        peak_memory_bytes=512_000_000,
        mfu=flops / median_seconds / 170e9,
        flops_per_step=flops,
        limit_seconds=limit,
        limit_fraction=limit / median_seconds,
        memory=neutral(
            MemorySplit,
            weights_bytes=13_100_000,
            gradients_bytes=13_100_000,
            optimizer_bytes=26_200_000,
            activations_bytes=441_000_000,
            other_bytes=18_600_000,
        ),
        memory_timeline=memory_timeline(512_000_000, median_seconds),
        memory_growth_bytes_per_step=0.0,
        operators=operators(median_seconds / 0.2134),
        operator_calls=1420.0,
        small_operator_share=0.06,
        sync_points=[SyncPoint(kind="item", site=a_site(61), calls=1.0, seconds=0.0004)],
        hot_lines=[HotLine(site=a_site(58), phase="backward", share=0.5, leaf="torch.backward")],
        graph_breaks=[GraphBreak(reason="call to print", site=a_site(62), count=1)],
        models=[a_model()],
        optimizers=[an_optimizer()],
        loaders=[a_loader()],
        settings=some_settings(),
        habits={"math_attention": Habit(calls=4.0, site=a_site(21))},
        losses=losses(0),
        gradient_norms=[1.0] * len(samples),
        non_finite=0,
        step_samples=samples,
        environment=an_environment(),
        warmup_steps=12,
    )


def a_site(line: int, file: str = "examples/train_gpt.py") -> Site:
    return Site(file=file, line=line, function="main")


def a_model() -> ModelFacts:
    return neutral(
        ModelFacts,
        name="GPT",
        num_parameters=3_290_000,
        num_parameter_tensors=52,
        parameter_bytes=13_100_000,
        num_trainable=3_290_000,
        dtype="float32",
        device="cpu",
        num_modules=41,
        training=True,
        repeated_block="Block",
        num_repeated=4,
        has_convolutions=False,
        channels_last=False,
        has_recurrent=False,
        has_dropout=False,
        has_attention=True,
        checkpointing=False,
        compiled=False,
        wrapper=None,
        forward_site=a_site(55),
    )


def an_optimizer() -> OptimizerFacts:
    return neutral(
        OptimizerFacts,
        name="AdamW",
        num_parameter_tensors=52,
        num_parameters=3_290_000,
        fused=False,
        foreach=False,
        supports_fused=True,
        state_bytes=26_200_000,
        steps_per_step=1.0,
        site=a_site(40),
        step_site=a_site(59),
        zeroes_in_place=False,
    )


def a_loader() -> LoaderFacts:
    return neutral(
        LoaderFacts,
        batch_size=12,
        num_workers=0,
        pin_memory=False,
        persistent_workers=False,
        prefetch_factor=None,
        dataset="TextWindows",
        num_batches=400,
        batch_bytes=49_152,
        site=a_site(47),
        fetch_seconds=0.006,
        wait_seconds=0.0066,
        restarts=0,
        start_seconds=0.01,
    )


def some_settings() -> Settings:
    return neutral(
        Settings,
        num_threads=2,
        cpu_count=2,
        matmul_precision="highest",
        backward_site=a_site(58),
        forwards_per_step=1.0,
        backwards_per_step=1.0,
    )


def findings() -> list[Finding]:
    return [
        neutral(
            Finding,
            cause="float32-matmuls",
            share=0.61,
            gain_low=1.25,
            gain_high=1.62,
            confidence=0.9,
            summary="61 % of the step multiplies float32 matrices at a third of the bf16 rate.",
            evidence={
                "matmul_seconds": 0.1302,
                "share": 0.61,
                "float32_flops_per_second": 1.02e11,
                "bfloat16_peak_flops_per_second": 3.6e11,
            },
            where=["examples/train_gpt.py:55", "examples/train_gpt.py:58"],
            cure="Run the forward pass and the loss under torch.autocast in bfloat16.",
            effort="line",
            technique="autocast-bf16",
        ),
        neutral(
            Finding,
            cause="unfused-optimizer",
            share=0.142,
            gain_low=1.06,
            gain_high=1.12,
            confidence=0.95,
            summary="AdamW updates 52 tensors one by one: 14 % of the step.",
            evidence={"optimizer_seconds": 0.0303, "num_tensors": 52, "supports_fused": "yes"},
            where=["examples/train_gpt.py:40"],
            cure="Pass fused=True to the optimizer.",
            effort="flag",
            technique="fused-optimizer",
        ),
        neutral(
            Finding,
            cause="explicit-attention",
            share=0.15,
            gain_low=1.02,
            gain_high=1.1,
            confidence=0.6,
            summary="Attention runs as softmax between two batched matmuls, 4 times per step.",
            evidence={"math_attention_calls": 4.0, "softmax_bytes": 75_000_000},
            where=["examples/train_gpt.py:21"],
            cure="Call torch.nn.functional.scaled_dot_product_attention.",
            effort="code",
            technique=None,
        ),
    ]


def a_loss_check(**changes: object) -> LossCheck:
    baseline = losses(0)
    check = neutral(
        LossCheck,
        passed=True,
        kind="statistical",
        summary="RMS difference 0.012 over 120 steps, within the seed spread of 0.058",
        steps=120,
        max_abs_difference=0.031,
        seed_spread=0.058,
        baseline=baseline,
        candidate=[loss + 0.012 * (-1) ** index for index, loss in enumerate(baseline)],
    )
    return msgspec.structs.replace(check, **changes)


def a_row(technique: str, multiplier: float, cumulative: float, **changes: object) -> LedgerRow:
    row = neutral(
        LedgerRow,
        technique=technique,
        multiplier=multiplier,
        ci_low=multiplier * 0.975,
        ci_high=multiplier * 1.024,
        cumulative=cumulative,
        step_seconds=0.2134 / cumulative,
        baseline_step_seconds=0.2134 / cumulative * multiplier,
        peak_memory_bytes=int(512_000_000 / cumulative**0.5),
        verified=True,
        verification="losses within the seed spread over 120 steps",
        kept=True,
        reason="faster beyond noise",
        rounds=12,
    )
    return msgspec.structs.replace(row, **changes)


def rows() -> list[LedgerRow]:
    return [
        a_row(
            "autocast-bf16", 1.53, 1.53, options={"dtype": "bfloat16"}, loss_check=a_loss_check()
        ),
        a_row("fused-optimizer", 1.11, 1.6983, verification="parameters equal to rounding"),
        a_row(
            "channels-last",
            1.0,
            1.6983,
            kept=False,
            verified=False,
            verification="not verified: it did not apply",
            reason="does not apply: the model has no convolutions",
            ci_low=1.0,
            ci_high=1.0,
            rounds=0,
        ),
        a_row("scaled-dot-product-attention", 1.18, 2.004),
        a_row(
            "torch-compile",
            1.09,
            2.1844,
            options={"mode": "default", "regional": True},
            verification="losses within the seed spread over 120 steps; 14.2 s to compile",
        ),
        a_row(
            "loader-workers",
            0.93,
            2.1844,
            options={"num_workers": 2},
            kept=False,
            reason="slower: the data set is in memory, workers only add copies",
            verification="batches bit-equal",
        ),
        a_row(
            "matmul-precision-medium",
            1.06,
            2.1844,
            kept=False,
            verified=False,
            verification="RMS difference 0.31 against a seed spread of 0.058",
            reason="changes the training result",
        ),
        a_row(
            "garbage-collector-freeze",
            1.012,
            2.2106,
            verification="bit-equal",
            ci_low=1.004,
            ci_high=1.02,
        ),
    ]


def a_ledger(**changes: object) -> Ledger:
    baseline = a_profile()
    tuned_operators = operators(1 / 2.31, "bfloat16")
    tuned = a_profile(
        0.2134 / 2.31,
        peak_memory_bytes=301_000_000,
        operators=tuned_operators,
        limit_fraction=0.64,
        memory=msgspec.structs.replace(baseline.memory, activations_bytes=230_000_000),
        memory_timeline=memory_timeline(301_000_000, 0.2134 / 2.31),
    )
    ledger = neutral(
        Ledger,
        baseline=baseline,
        tuned=tuned,
        rows=rows(),
        cumulative=2.31,
        cumulative_ci=(2.24, 2.37),
        loss_check=a_loss_check(),
        findings=findings(),
        stack="ridgeline-tune/stack.toml",
        report="ridgeline-tune/report.html",
        patch="ridgeline-tune/script.patch",
        environment=an_environment(),
        complete=True,
        stack_rows=[
            "autocast-bf16",
            "fused-optimizer",
            "scaled-dot-product-attention",
            "torch-compile",
            "garbage-collector-freeze",
        ],
        samples={
            "baseline": step_samples(0.2134, seed=5),
            "tuned": step_samples(0.2134 / 2.31, seed=6),
        },
    )
    return msgspec.structs.replace(ledger, **changes)
