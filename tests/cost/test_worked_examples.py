"""The worked examples of the field, recomputed to the printed figure.

Each test names the convention that gives the figure; `docs/worked-examples.md` tells them as
prose, with the right figure where a popular rule is wrong.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ridgeline import quantity
from ridgeline.cost.amdahl import stacked
from ridgeline.cost.collective_volume import all_reduce_bytes
from ridgeline.cost.money import run_cost
from ridgeline.cost.operators import model_operators
from ridgeline.cost.pipeline_schedule import ChunkSeconds, bubble_fraction, simulate
from ridgeline.cost.serving.kv_cache import kv_cache_bytes
from ridgeline.cost.serving.speculation import expected_tokens, speculative_speedup
from ridgeline.cost.static_memory import (
    RECIPES,
    Stage,
    activation_bytes,
    static_bytes,
    zero_bytes,
    zero_saving,
)
from ridgeline.hardware import device
from ridgeline.models import active_parameter_count, load_model, parameter_count
from ridgeline.models.spec import ModelSpec

PAGE = Path(__file__).parents[2] / "docs" / "worked-examples.md"
LLAMA_13B = "llama-13b"


def a_70b_with_8_kv_heads() -> ModelSpec:
    return load_model("llama-2-70b")


def test_seven_billion_parameters_with_adam_hold_112_gb() -> None:
    # 16 bytes per parameter, 7e9 parameters, GB of 1e9.
    assert static_bytes(7e9, RECIPES["mixed adam"]) == 112e9


def test_llama_7b_has_six_point_seven_billion_and_so_108_gb() -> None:
    count = parameter_count(load_model("llama-7b"))
    assert static_bytes(count, RECIPES["mixed adam"]) / 1e9 == pytest.approx(107.8, abs=0.05)


def test_thirteen_billion_at_batch_4_and_4096_tokens_need_288_gb() -> None:
    # 16 bytes x 13e9 = 208 GB, and 24 bytes per token, channel and layer: twelve 16-bit tensors
    # of the hidden width in each of LLaMA-13B's 40 layers of width 5120.
    model = load_model(LLAMA_13B)
    states = static_bytes(13e9, RECIPES["mixed adam"])
    kept = activation_bytes(4, 4096, model.hidden, model.layers, 24)
    assert states == 208e9
    assert (states + kept) / 1e9 == pytest.approx(288, abs=0.6)


def test_the_same_by_korthikanti_is_322_gb_and_215_gb_with_recomputation() -> None:
    model = load_model(LLAMA_13B)
    states = static_bytes(13e9, RECIPES["mixed adam"])
    whole = activation_bytes(4, 4096, model.hidden, model.layers, 34)
    inputs = activation_bytes(4, 4096, model.hidden, model.layers, 2)
    assert (states + whole) / 1e9 == pytest.approx(322, abs=0.5)
    assert (states + inputs) / 1e9 == pytest.approx(215, abs=0.5)


@pytest.mark.parametrize("num_ranks", [2, 3, 8, 64, 1024])
def test_a_ring_all_reduce_sends_2_n_minus_1_over_n_of_the_buffer(num_ranks: int) -> None:
    assert all_reduce_bytes(num_ranks, num_ranks * 1e6) == pytest.approx(2e6 * (num_ranks - 1))


def test_gradients_of_7b_in_bf16_over_8_gpus_send_24_5_gb() -> None:
    # Sent by each GPU: 2 · 7/8 · 14 GB. All eight together send 196 GB.
    assert all_reduce_bytes(8, 2 * 7e9) == 24.5e9


@pytest.mark.parametrize(("tokens", "printed"), [(2048, 1.1), (32768, 17.2)])
def test_the_kv_cache_of_llama_7b(tokens: int, printed: float) -> None:
    # 16-bit, one sequence, 2k = 2048, GB of 1e9; in GiB exactly 1 and 16.
    size = kv_cache_bytes(load_model("llama-7b"), tokens)
    assert round(size / 1e9, 1) == printed
    assert size / 2**30 == tokens / 2048


def test_the_kv_cache_of_70b_with_8_kv_heads_is_2_6_gb_at_8k() -> None:
    # 8k = 8,000 tokens here, unlike above; 8192 tokens are 2.7 GB, or exactly 2.5 GiB.
    model = a_70b_with_8_kv_heads()
    assert model.kv_heads == 8
    assert round(kv_cache_bytes(model, 8000) / 1e9, 1) == 2.6
    assert round(kv_cache_bytes(model, 8192) / 1e9, 1) == 2.7
    assert kv_cache_bytes(model, 8192) == 2.5 * 2**30


def test_all_64_heads_would_keep_eight_times_as_much() -> None:
    model = a_70b_with_8_kv_heads()
    whole = ModelSpec(**{**{f: getattr(model, f) for f in model.__struct_fields__}, "kv_heads": 64})
    assert kv_cache_bytes(whole, 8000) == 8 * kv_cache_bytes(model, 8000)


@pytest.mark.parametrize(
    ("name", "printed", "exact"),
    [("v100", 139, 139), ("a100", 156, 153), ("h100", 291, 295), ("h200", 206, 206),
     ("b200", 281, 281)],
)  # fmt: skip
def test_ridge_points(name: str, printed: int, exact: int) -> None:
    # The printed row rounds the bandwidth to 0.1 TB/s first.
    assert round(device(name).ridge_flops_per_byte(headline=True)) == printed
    assert round(device(name).ridge_flops_per_byte()) == exact


@pytest.mark.parametrize(
    ("stage", "gigabytes", "times"),
    [(0, 2800.0, 1.0), (1, 732.8, 3.8), (2, 388.3, 7.2), (3, 43.75, 64.0)],
)
def test_zero_on_175b_over_64_ranks(stage: Stage, gigabytes: float, times: float) -> None:
    # 16 bytes per parameter, of which 12, 14 or all 16 are divided by 64.
    recipe = RECIPES["mixed adam"]
    assert zero_bytes(175e9, recipe, stage, 64) / 1e9 == pytest.approx(gigabytes, abs=0.05)
    assert zero_saving(recipe, stage, 64) == pytest.approx(times, abs=0.05)


def test_speculation_at_acceptance_0_8_with_5_drafts_of_2_ms_against_30_ms() -> None:
    # The printed 2.5 leaves out the token that the target adds when all drafts are accepted:
    # (1 - 0.8^5)/(1 - 0.8) = 3.36 tokens per round of 5 · 2 + 30 ms.
    without_last = expected_tokens(0.8, 4)
    assert without_last * 30 / (5 * 2 + 30) == pytest.approx(2.5, abs=0.05)
    right = speculative_speedup(0.8, 5, draft_seconds=2e-3, target_seconds=30e-3)
    assert right == pytest.approx(2.77, abs=0.005)


@pytest.mark.parametrize(
    ("stages", "microbatches", "chunks"), [(4, 8, 1), (8, 64, 1), (4, 8, 2), (8, 32, 4)]
)
def test_the_bubble_is_p_minus_1_over_vm_plus_p_minus_1(
    stages: int, microbatches: int, chunks: int
) -> None:
    each = ChunkSeconds(
        forward_seconds=1.0, backward_input_seconds=1.0, backward_weight_seconds=1.0
    )
    step = simulate(
        "interleaved" if chunks > 1 else "1f1b",
        num_stages=stages,
        num_microbatches=microbatches,
        num_chunks=chunks,
        seconds=each,
    )
    printed = (stages - 1) / (chunks * microbatches + stages - 1)
    assert step.bubble_fraction == pytest.approx(printed, rel=1e-12)
    assert bubble_fraction(stages, microbatches, chunks) == printed


def test_four_cures_stack_to_3_1() -> None:
    assert round(stacked([1.4, 1.7, 1.15, 1.12]), 1) == 3.1


def test_a_bill_of_50_000_dollars_becomes_16_300() -> None:
    page = PAGE.read_text()
    cumulative, steps, step_seconds, usd_per_hour = 1.0, 1e6, 3.6, 50.0
    for name, multiplier in (
        ("as it stood", None), ("first", 1.4), ("second", 1.7), ("third", 1.15), ("fourth", 1.12),
    ):  # fmt: skip
        cumulative *= multiplier or 1.0
        cost = run_cost(steps, step_seconds, usd_per_hour, cumulative)
        assert cost.usd is not None
        cells = [
            name,
            "" if multiplier is None else quantity.ratio(multiplier),
            quantity.ratio(cumulative),
            quantity.seconds(cost.step_seconds),
            quantity.hours(cost.run_seconds),
            quantity.usd(cost.usd),
        ]
        assert f"| {' | '.join(cells)} |".replace("|  |", "| |") in page
    assert cells[-1] == "$16,300"
    outside = 1000 * (0.1 + 0.9 / cumulative)
    assert f"{outside:.0f} hours and {quantity.usd(outside * usd_per_hour)}" in page
    saved = [50_000 / above - 50_000 / (above * 1.15) for above in (2.38, 1.0)]
    assert [round(amount, -2) for amount in saved] == [2700, 6500]


@pytest.mark.parametrize(
    ("name", "seq", "share"),
    [("llama-7b", 2048, 0.97), ("llama-3-8b", 8192, 0.92), ("llama-3-8b", 131072, 0.29)],
)
def test_six_flops_per_parameter_and_token_miss_the_attention(
    name: str, seq: int, share: float
) -> None:
    # Causal half counted; the rule also counts an embedding that does no arithmetic.
    model = load_model(name)
    flops = sum(one.flops * one.count for one in model_operators(model, seq, 1))
    assert 6 * parameter_count(model) * seq / flops == pytest.approx(share, abs=0.005)


def test_six_flops_per_parameter_and_token_are_16_times_too_many_for_deepseek_v3() -> None:
    model = load_model("deepseek-v3")
    flops = sum(one.flops * one.count for one in model_operators(model, 4096, 1))
    assert 6 * parameter_count(model) * 4096 / flops == pytest.approx(15.7, abs=0.1)
    assert 6 * active_parameter_count(model) * 4096 / flops == pytest.approx(0.88, abs=0.005)


def test_the_page_prints_what_is_computed_here() -> None:
    page = PAGE.read_text()
    for figure in (
        "112 GB",
        "288 GB",
        "322 GB",
        "24.5 GB",
        "17.2 GB",
        "2.6 GB",
        "2.77",
        "2.84",
        "3.07",
    ):
        assert re.search(re.escape(figure), page), figure
