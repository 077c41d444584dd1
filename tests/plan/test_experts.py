"""Mixtures of experts whose step times are in no table that the model was fitted to."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from ridgeline.cost.training.estimate import estimate_one
from ridgeline.cost.training.workload import Workload
from ridgeline.hardware.cluster import Cluster, parse_cluster
from ridgeline.models.load import load_model
from ridgeline.plan.training.coefficients import coefficients_for
from ridgeline.plan.training.stacks import stack
from ridgeline.records.estimate import Estimate
from ridgeline.records.layout import Layout

H800 = parse_cluster("2048xH100", domain_bytes_per_second=200e9)
"""An H100 with 400 of its 900 GB/s of NVLink."""


def estimate(model: str, cluster: Cluster, software: str, layout: Layout) -> Estimate:
    work = Workload(seq=4096, stack=stack(software))
    return estimate_one(load_model(model), cluster, work, layout, coefficients_for(cluster.device))


def test_deepseek_v3_trains_as_fast_as_its_authors_say() -> None:
    """arXiv 2412.19437: 180,000 H800 hours per 10^12 tokens (section 1), so 1,543 tokens/s each;
    16 stages, experts over 64 devices, ZeRO-1, no tensor parallelism, dispatch hidden (section
    3.2), 15,360 sequences (section 4.2)."""
    layout = Layout(
        dp=128, fsdp=128, zero=1, pp=16, ep=64, micro_batch=1, global_batch=15_360, precision="fp8"
    )
    found = estimate("deepseek-v3", H800, "megatron-2026", layout)
    step = 15_360 * 4096 / 2048 / (1e12 / (180e3 * 3600))
    assert found.interval[0] < step < found.interval[1]


def test_an_all_to_all_that_repeats_tokens_over_the_network_halves_the_rate() -> None:
    """NVIDIA-NeMo/Megatron-Bridge, skills/mbridge-perf-cuda-graphs/SKILL.md at 6608201, pitfall 13:
    Qwen3-30B-A3B on 16 H100 in bf16 takes 41.36 s per step with the all-to-all dispatcher, with or
    without CUDA graphs; 20.15 s with HybridEP and overlap (row 510 of the published table). Layout:
    scripts/performance/configs/qwen/qwen3_workload_base_configs.py at 01b2977."""
    layout = Layout(dp=16, fsdp=16, zero=1, ep=16, micro_batch=1, global_batch=1024)
    cluster = parse_cluster("16xH100")
    plain = estimate("qwen3-30b-a3b", cluster, "megatron", layout)
    tiered = estimate("qwen3-30b-a3b", cluster, "megatron-2026", layout)
    assert plain.interval[0] < 41.36 < plain.interval[1]
    assert plain.step_seconds / tiered.step_seconds == pytest.approx(41.36 / 20.15, rel=0.15)
    assert plain.bottleneck == "expert"


@pytest.mark.parametrize(("device", "teraflops"), [("GB200", 1048.0), ("GB300", 1233.0)])
def test_deepseek_v3_on_blackwell_is_within_the_interval(device: str, teraflops: float) -> None:
    """arXiv 2603.07685, abstract. The layout is the one that NVIDIA recommends there (TP 1, PP 4,
    VPP 4, EP 64: Megatron-Bridge, skills/mbridge-perf-moe-hardware-configs/SKILL.md at 6608201)."""
    layout = Layout(
        dp=64, fsdp=64, zero=1, pp=4, vpp=4, ep=64, micro_batch=1, global_batch=8192,
        precision="mxfp8",
    )  # fmt: skip
    cluster = parse_cluster(f"256x{device}")
    found = estimate("deepseek-v3", cluster, "megatron-2026", layout)
    rate = found.mfu * cluster.device.peaks["fp8"] / 1e12
    step = found.step_seconds * rate / teraflops
    assert found.interval[0] < step < found.interval[1]


def test_experts_over_nodes_are_dispatched_beside_another_micro_batch_or_cost_more() -> None:
    """Overlap hides most of an all-to-all over the network, and a virtual pipeline turns it on."""
    layout = Layout(
        dp=16, fsdp=16, zero=1, tp=2, sp=True, pp=8, vpp=1, ep=32, micro_batch=1, global_batch=2048
    )
    cluster = parse_cluster("256xH100")
    waits = [
        estimate("qwen3-235b-a22b", cluster, "megatron", with_chunks(layout, chunks)).breakdown
        for chunks in (1, 4)
    ]
    assert waits[1]["expert"] < waits[0]["expert"]
    alone = replace(parse_cluster("256xGB200"), domain_size=64)
    inside = estimate("qwen3-235b-a22b", alone, "megatron", with_chunks(layout, 4))
    once = estimate("qwen3-235b-a22b", alone, "megatron", layout)
    assert inside.breakdown["expert"] == pytest.approx(once.breakdown["expert"])


def with_chunks(layout: Layout, chunks: int) -> Layout:
    return msgspec.structs.replace(layout, vpp=chunks)


def test_megatron_keeps_no_output_of_experts_for_their_gradients() -> None:
    layout = Layout(dp=8, fsdp=8, zero=1, ep=8, micro_batch=1, global_batch=8)
    weighed, kept = (
        estimate("Mixtral-8x7B", parse_cluster("8xH100"), software, layout)
        .memory.stages[0]
        .terms["activations"]
        for software in ("megatron", "jax")
    )
    outputs = 32 * 4096 * 2 * 2.0 * 4096  # layers, tokens, experts of each, bytes, width
    assert kept - weighed == pytest.approx(outputs)
