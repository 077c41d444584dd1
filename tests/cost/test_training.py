"""The training cost model: laws that hold for any layout, and figures from its sources."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.arrays import join
from ridgeline.cost.training.coefficients import Coefficients
from ridgeline.cost.training.communication import passes_beside
from ridgeline.cost.training.estimate import (
    Estimates,
    estimate_one,
    estimate_setting,
    estimate_training,
)
from ridgeline.cost.training.layouts import stack_layouts
from ridgeline.cost.training.setting import setting_of
from ridgeline.cost.training.workload import Stack, Workload
from ridgeline.hardware.cluster import Cluster, parse_cluster
from ridgeline.models.presets import preset
from ridgeline.records.layout import Layout

MODEL = preset("Llama-3-8B")
SHARES = dict.fromkeys(("fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"), 0.7)
COEFFICIENTS = Coefficients(gemm=SHARES)
WORK = Workload(seq=4096)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any layout of 64 devices that could run."""
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    pp = draw(st.sampled_from([1, 2, 4]))
    cp = draw(st.sampled_from([1, 2]))
    dp = 64 // (tp * pp * cp)
    zero = draw(st.sampled_from([0, 1, 2, 3]))
    micro = draw(st.sampled_from([1, 2, 4]))
    return Layout(
        dp=dp,
        fsdp=dp * cp if zero else 1,
        zero=zero,
        tp=tp,
        sp=tp > 1 and draw(st.booleans()),
        pp=pp,
        vpp=draw(st.sampled_from([1, 2])) if pp > 1 else 1,
        cp=cp,
        micro_batch=micro,
        global_batch=dp * micro * draw(st.sampled_from([1, 4, 8])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        precision=draw(st.sampled_from(["bf16", "fp8"])),
        compiled=draw(st.booleans()),
    )


def estimate(layout: Layout, cluster: Cluster | None = None, work: Workload = WORK) -> Estimates:
    place = cluster or parse_cluster("64xH100")
    return estimate_training(MODEL, place, work, stack_layouts([layout]), COEFFICIENTS)


@given(layouts())
@settings(max_examples=60, deadline=None)
def test_the_exposed_terms_add_up_to_the_step(layout: Layout) -> None:
    found = estimate(layout)
    total = sum(float(term[0]) for term in found.terms.values())
    assert total == pytest.approx(float(found.step_seconds[0]), rel=1e-9)
    assert all(float(term[0]) >= 0 for term in found.terms.values())


@given(layouts())
@settings(max_examples=40, deadline=None)
def test_more_bandwidth_never_slows_a_step(layout: Layout) -> None:
    slow = parse_cluster("64xH100")
    fast = replace(
        slow,
        network_bytes_per_second=2 * slow.network_bytes_per_second,
        domain_bytes_per_second=2 * slow.domain_bytes_per_second,
    )
    assert estimate(layout, fast).step_seconds[0] <= estimate(layout, slow).step_seconds[0]


def test_gradients_of_interleaved_chunks_travel_beside_the_other_chunks() -> None:
    one = Layout(dp=4, tp=1, pp=4, global_batch=64)
    layouts = [msgspec.structs.replace(one, vpp=chunks) for chunks in (1, 2, 4)]
    few = msgspec.structs.replace(one, vpp=4, global_batch=8)
    beside = passes_beside(stack_layouts([*layouts, few]))
    assert beside.tolist() == [1.0, 2.0, 3.0, 1.5]


def test_buckets_that_grow_with_the_ranks_let_a_run_scale_weakly() -> None:
    steps = {}
    for growing in (False, True):
        work = replace(WORK, stack=Stack(growing_buckets=growing))
        for ranks in (64, 2048):
            layout = Layout(dp=ranks, fsdp=ranks, zero=1, global_batch=4 * ranks, micro_batch=4)
            found = estimate(layout, parse_cluster(f"{ranks}xH100"), work)
            steps[growing, ranks] = float(found.step_seconds[0])
    assert steps[True, 64] < steps[True, 2048] < 1.1 * steps[True, 64]
    assert steps[False, 2048] > 1.15 * steps[False, 64]


@given(layouts(), st.floats(1.05, 1.5))
@settings(max_examples=40, deadline=None)
def test_a_higher_share_of_the_peak_never_slows_a_step(layout: Layout, factor: float) -> None:
    place, arrays = parse_cluster("64xH100"), stack_layouts([layout])
    better = Coefficients(gemm={name: share * factor for name, share in SHARES.items()})
    before = estimate_training(MODEL, place, WORK, arrays, COEFFICIENTS).step_seconds[0]
    assert estimate_training(MODEL, place, WORK, arrays, better).step_seconds[0] <= before


@given(layouts())
@settings(max_examples=40, deadline=None)
def test_memory_is_never_below_the_static_states(layout: Layout) -> None:
    found = estimate(layout)
    sharded = {name: float(value[0]) for name, value in found.memory_terms.items()}
    static = sum(sharded[name] for name in ("weights", "gradients", "master", "optimizer"))
    assert float(found.peak_bytes[0]) > static
    parameters = 8.03e9 / (layout.tp * layout.pp)
    least = parameters * 16 / (layout.fsdp if layout.zero == 3 else layout.dp * layout.cp)
    assert static >= 0.5 * least


@given(st.lists(layouts(), min_size=2, max_size=6))
@settings(max_examples=20, deadline=None)
def test_many_layouts_at_once_are_what_each_is_alone(some: list[Layout]) -> None:
    place = parse_cluster("64xH100")
    together = estimate_training(MODEL, place, WORK, stack_layouts(some), COEFFICIENTS)
    for index, layout in enumerate(some):
        alone = estimate(layout)
        assert together.step_seconds[index] == pytest.approx(alone.step_seconds[0], rel=1e-12)
        assert together.peak_bytes[index] == pytest.approx(alone.peak_bytes[0], rel=1e-12)
        assert together.verdict[index] == alone.verdict[0]


def test_rows_of_different_models_and_devices_are_what_each_is_alone() -> None:
    cases = [
        (preset("Llama-3-8B"), parse_cluster("8xH100"),
         Layout(dp=8, fsdp=8, zero=3, global_batch=8)),
        (preset("Mixtral-8x7B"), parse_cluster("16xA100"),
         Layout(dp=16, fsdp=16, zero=1, ep=8, global_batch=32)),
        (preset("DeepSeek-V3"), parse_cluster("256xH100"),
         Layout(dp=16, fsdp=16, zero=1, pp=16, ep=16, global_batch=256)),
    ]  # fmt: skip
    parts = [
        setting_of(model, place, WORK, stack_layouts([layout]), COEFFICIENTS)
        for model, place, layout in cases
    ]
    together = estimate_setting(join(parts), np.zeros(len(parts)))
    for index, part in enumerate(parts):
        alone = estimate_setting(part, np.zeros(1))
        assert together.step_seconds[index] == pytest.approx(alone.step_seconds[0])
        assert together.peak_bytes[index] == pytest.approx(alone.peak_bytes[0])


def test_full_recomputation_costs_a_forward_and_saves_most_activations() -> None:
    base = {"dp": 64, "fsdp": 64, "zero": 3, "global_batch": 64}
    kept = estimate(Layout(**base))
    redone = estimate(Layout(**base, recompute="full"))
    assert 1.15 < redone.step_seconds[0] / kept.step_seconds[0] < 1.4
    activations = "activations"
    assert redone.memory_terms[activations][0] < 0.1 * kept.memory_terms[activations][0]
    ratio = redone.hardware_flops[0] / kept.hardware_flops[0]
    assert 1.25 < ratio < 4 / 3  # the head is not done again


def test_model_flops_are_six_per_parameter_and_token_plus_attention() -> None:
    """Narayanan et al., arXiv 2104.04473, equation 2, without recomputation; causal: half."""
    work = Workload(seq=2048)
    layout = Layout(global_batch=1)
    found = estimate_training(
        preset("gpt2"), parse_cluster("1xA100"), work, stack_layouts([layout]), COEFFICIENTS
    )
    layers, hidden, vocab, tokens = 12, 768, 50257, 2048
    dense = 72 * tokens * layers * hidden**2
    attention = 12 * tokens * layers * hidden * tokens / 2
    head = 6 * tokens * hidden * vocab
    assert found.model_flops[0] == pytest.approx(dense + attention + head, rel=0.02)


def test_activations_of_a_gpt_layer_are_34_bytes_per_token_and_width() -> None:
    """Korthikanti et al., arXiv 2205.05198, table 2: 34·s·b·h with dropout, scores apart."""
    from ridgeline.cost.training.memory import layer_activation_bytes, score_bytes

    stack = Stack(fused_attention=False, fused_elementwise=True, dropout=True)
    work = Workload(seq=1024, stack=stack)
    layouts_ = stack_layouts([Layout(micro_batch=2, global_batch=2)])
    setting = setting_of(preset("gpt2"), parse_cluster("1xA100"), work, layouts_, COEFFICIENTS)
    scores = score_bytes(setting)
    assert scores[0] == 5 * 12 * 1024**2 * 2
    assert layer_activation_bytes(setting)[0] - scores[0] == 34 * 1024 * 2 * 768


def test_zero_stages_save_what_the_paper_says() -> None:
    """Rajbhandari et al., arXiv 1910.02054, figure 1: 7.5B over 64: 120, 31.4, 16.6, 1.9 GB."""
    model = preset("Llama-3-8B")
    parameters = 8.03
    stack = Stack(gradient_bytes=2.0)
    expected = {0: 16.0, 1: 4 + 12 / 64, 2: 2 + 14 / 64, 3: 14 / 64}
    for zero, per_parameter in expected.items():
        layout = Layout(dp=64, fsdp=64 if zero else 1, zero=zero, global_batch=64)
        found = estimate_training(
            model, parse_cluster("64xH100"), Workload(seq=1024, stack=stack),
            stack_layouts([layout]), COEFFICIENTS,
        )  # fmt: skip
        names = ("weights", "gradients", "master", "optimizer")
        held = sum(float(found.memory_terms[name][0]) for name in names) / 1e9
        assert held == pytest.approx(parameters * per_parameter, rel=0.01), zero


def test_the_record_holds_every_stage_and_an_interval_around_the_step() -> None:
    layout = Layout(dp=4, fsdp=4, zero=1, tp=4, sp=True, pp=4, global_batch=64)
    found = estimate_one(MODEL, parse_cluster("64xH100"), WORK, layout, COEFFICIENTS)
    assert [stage.stage for stage in found.memory.stages] == [0, 1, 2, 3]
    assert max(stage.total_bytes for stage in found.memory.stages) == pytest.approx(
        found.memory.peak_bytes
    )
    assert found.interval[0] < found.step_seconds < found.interval[1]
    assert found.bottleneck == max(found.breakdown, key=lambda name: found.breakdown[name])
    tokens = layout.global_batch * WORK.seq / found.step_seconds / layout.num_devices
    assert found.tokens_per_second_per_gpu == pytest.approx(tokens)


def test_gradients_that_are_freed_at_once_are_no_more_than_the_largest_weight() -> None:
    layout = Layout(dp=64, fsdp=64, zero=1, global_batch=64)
    kept, freed = (
        float(estimate(layout, work=Workload(seq=1024, stack=stack)).memory_terms["gradients"][0])
        for stack in (Stack(), Stack(frees_gradients=True))
    )
    assert freed == pytest.approx(kept * 128256 * 4096 / 8.03e9, rel=0.01)


def peaks(stack: Stack, **layout: int | str) -> dict[str, float]:
    filled = msgspec.convert({"dp": 8, "fsdp": 8, "recompute": "full"} | layout, Layout)
    found = estimate(filled, work=Workload(seq=1024, stack=stack))
    return {name: float(value[0]) for name, value in found.memory_terms.items()}


def test_a_step_over_lists_counts_where_it_takes_more_than_activations() -> None:
    plain, lists = (
        peaks(Stack(step_copies=copies), zero=0, global_batch=8) for copies in (False, True)
    )
    moving = sum(plain[name] for name in ("activations", "recompute", "logits", "gathered"))
    assert plain["update"] == 0.0
    assert lists["update"] == pytest.approx(plain["optimizer"] / 2 - moving)
    roomy = peaks(Stack(step_copies=True), zero=3, global_batch=8, recompute="none")
    assert roomy["update"] == 0.0


@pytest.mark.parametrize(("batch", "whole"), [(8, 1.0), (16, 8.0)])
def test_sharded_gradients_are_whole_while_micro_batches_are_summed(
    batch: int, whole: float
) -> None:
    scattered, summed = (
        peaks(Stack(sums_whole_gradients=sums), zero=3, global_batch=batch)["gradients"]
        for sums in (False, True)
    )
    assert summed == pytest.approx(whole * scattered)


def test_lengths_that_vary_leave_blocks_that_nothing_fits() -> None:
    even, ragged = (peaks(Stack(ragged=one), zero=3, global_batch=8) for one in (False, True))
    assert ragged["slack"] == pytest.approx(even["slack"] / 0.07)


def test_activations_in_the_hosts_memory_leave_two_layers_of_them() -> None:
    layout = Layout(dp=64, fsdp=64, zero=3, global_batch=64, recompute="full")
    kept, away = (
        float(estimate(layout, work=Workload(seq=1024, stack=stack)).memory_terms["activations"][0])
        for stack in (Stack(), Stack(offloads_activations=True))
    )
    assert away == pytest.approx(kept * 2 / 32)


def test_the_fullest_stage_of_an_uneven_pipeline_decides_its_memory() -> None:
    layout = Layout(dp=1, pp=5, global_batch=4)
    held = estimate(layout, parse_cluster("5xH100")).memory_terms["master"][0]
    layers = 8.03e9 - 2 * 128256 * 4096
    assert float(held) == pytest.approx(4.0 * (layers * 7 / 32 + 128256 * 4096), rel=0.01)


def test_recomputation_by_operator_repeats_matmuls_that_it_does_not_know() -> None:
    work = Workload(seq=2048, stack=Stack(selective_operators=True))
    layout = Layout(dp=64, fsdp=64, zero=3, global_batch=64, recompute="selective", compiled=True)
    kept, unknown = (
        float(estimate(replaced, work=work).memory_terms["activations"][0])
        for replaced in (layout, msgspec.structs.replace(layout, precision="nvfp4"))
    )
    # An input, attention's output and its sums, of that and query, value and gate.
    assert unknown / kept == pytest.approx(16.5 / (16.5 + 8.2 + 2.0 + 28.7), rel=0.03)


def test_hooks_around_modules_take_their_time_however_few_the_tokens() -> None:
    layout = Layout(dp=8, fsdp=8, zero=3, global_batch=8, recompute="full")
    plain, hooked = (
        float(estimate(layout, parse_cluster("8xH100"), work).step_seconds[0])
        for work in (Workload(seq=128, stack=Stack(hook_seconds=each)) for each in (0.0, 3e-3))
    )
    # Forward, repeated, backward: the device's own work lies beneath them, in part.
    assert max(plain, 3 * 32 * 3e-3) < hooked < plain + 3 * 32 * 3e-3


def test_recomputing_mixtures_takes_time_and_frees_what_they_keep() -> None:
    model, cluster = preset("Qwen3-30B-A3B"), parse_cluster("64xH100")
    layout = Layout(dp=64, fsdp=64, zero=1, ep=8, global_batch=64, recompute="selective",
                    compiled=True)  # fmt: skip

    def found(stack: Stack) -> tuple[float, float]:
        one = estimate_training(
            model, cluster, Workload(seq=4096, stack=stack), stack_layouts([layout]), COEFFICIENTS
        )
        return float(one.terms["recompute"][0]), float(one.memory_terms["activations"][0])

    core, kept = found(Stack())
    both, freed = found(Stack(repeats_experts=True))
    alone, _ = found(Stack(repeats_core=False, repeats_experts=True))
    assert both > 2 * core
    assert alone == pytest.approx(both - core)
    # Eight copies go to experts and come back, of eight gated widths in between.
    routed = 48 * 4096 * 8 * (4 * 2048 + 6 * 768)
    assert kept - freed == pytest.approx(routed, rel=0.01)


def test_light_modules_that_are_named_are_kept_no_more() -> None:
    model, cluster = preset("DeepSeek-V2-Lite"), parse_cluster("8xH100")
    layout = Layout(dp=8, fsdp=8, zero=1, ep=8, global_batch=8, recompute="selective")

    def kept(stack: Stack) -> float:
        one = estimate_training(
            model, cluster, Workload(seq=4096, stack=stack), stack_layouts([layout]), COEFFICIENTS
        )
        return float(one.memory_terms["activations"][0])

    plain = kept(Stack())
    # 26 mixtures of six experts 1,408 wide, 27 layers of 16 heads of 192, 192 and 128.
    assert plain - kept(Stack(repeats_gates=True)) == pytest.approx(26 * 4096 * 2 * 6 * 1408)
    latent = 27 * 4096 * 2 * 16 * (192 + 192 + 128)
    assert plain - kept(Stack(repeats_latent=True)) == pytest.approx(latent)
