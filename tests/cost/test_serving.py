"""KV cache, prefill and decode, speculation: limits, trends, and counted figures."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.collective_volume import Fabric
from ridgeline.cost.serving.decode import Server, decode, most_sequences, prefill, weight_bytes
from ridgeline.cost.serving.kv_cache import bytes_per_token, kv_cache_bytes
from ridgeline.cost.serving.speculation import best_num_drafts, expected_tokens, speculative_speedup
from ridgeline.hardware import device
from ridgeline.models import load_model

LLAMA = load_model("llama-3-8b")
H100 = Server(device=device("h100"))
FABRIC = Fabric(
    domain_size=8,
    domain_bytes_per_second=350e9,
    network_bytes_per_second=45e9,
    domain_latency_seconds=3e-6,
)


def test_deepseek_v3_keeps_70_kb_per_token() -> None:
    # DeepSeek-V3 (2412.19437): rank 512 and rotary 64 in 61 layers; 70.272 KB in Zhao et al.,
    # "Insights into DeepSeek-V3", 2505.09343, table 1, beside 327.680 KB of Qwen-2.5 72B and
    # 516.096 KB of Llama-3.1 405B.
    assert bytes_per_token(load_model("deepseek-v3")) == 70272
    assert bytes_per_token(load_model("llama-3.1-405b")) == 516096


def test_a_window_bounds_the_cache() -> None:
    model = load_model("mistral-7b")
    if not model.sliding_window:
        pytest.skip("the preset is of the version without a window")
    assert kv_cache_bytes(model, 100_000) == kv_cache_bytes(model, model.sliding_window)


def test_an_encoder_decoder_keeps_the_encoders_keys_too() -> None:
    model = load_model("t5-small")
    assert kv_cache_bytes(model, 64) == 2 * 64 * bytes_per_token(model)


@pytest.mark.parametrize(("tp", "share"), [(2, 2), (8, 8), (16, 8)])
def test_a_cache_is_split_over_as_many_devices_as_there_are_heads(tp: int, share: int) -> None:
    assert kv_cache_bytes(LLAMA, 100, tp=tp) * share == kv_cache_bytes(LLAMA, 100)


def test_a_single_sequence_decodes_at_the_speed_of_reading_the_weights() -> None:
    step = decode(LLAMA, H100, 1, 1)
    head_and_layers = weight_bytes(LLAMA, H100) - 2 * LLAMA.vocab * LLAMA.hidden
    assert step.seconds == pytest.approx(head_and_layers / 3.35e12, rel=0.01)
    assert step.memory_seconds > 50 * step.compute_seconds


@given(batch=st.integers(1, 512), seq=st.sampled_from([128, 2048, 16384]))
@settings(max_examples=40, deadline=None)
def test_a_larger_batch_decodes_more_tokens_but_each_step_takes_longer(
    batch: int, seq: int
) -> None:
    one, two = decode(LLAMA, H100, seq, batch), decode(LLAMA, H100, seq, 2 * batch)
    assert two.seconds > one.seconds
    assert two.tokens_per_second >= one.tokens_per_second * (1 - 1e-9)


def test_prefill_is_bound_by_compute_and_decode_by_memory() -> None:
    step = prefill(LLAMA, H100, 2048, 1)
    assert step.compute_seconds > step.memory_seconds
    # 2 FLOPs per weight and token but embedding and head, and attention.
    assert step.seconds > 2 * 6.98e9 * 2048 / 989.4e12


def test_fp8_weights_halve_a_decode_step_and_an_8_bit_cache_shrinks_long_contexts() -> None:
    half = replace(H100, dtype="fp8")
    assert decode(LLAMA, half, 1, 1).seconds < 0.52 * decode(LLAMA, H100, 1, 1).seconds
    small = replace(H100, cache_bytes=1.0)
    long = decode(LLAMA, H100, 131072, 16).seconds
    assert 0.5 < decode(LLAMA, small, 131072, 16).seconds / long < 0.55


def test_tensor_parallel_decoding_is_faster_but_pays_for_its_all_reduces() -> None:
    wide = replace(H100, tp=8, fabric=FABRIC)
    alone, eight = decode(LLAMA, H100, 2048, 1), decode(LLAMA, wide, 2048, 1)
    assert alone.seconds / 8 < eight.seconds < alone.seconds
    # 2 · 32 all-reduces of 2 · 7 steps of 3 µs.
    assert eight.communication_seconds > 64 * 14 * 3e-6


def test_what_kernels_do_not_reach_makes_a_step_longer() -> None:
    real = replace(H100, compute_share=0.7, bandwidth_share=0.8, fixed_seconds=1e-3)
    step = decode(LLAMA, real, 2048, 1)
    assert step.seconds == pytest.approx(decode(LLAMA, H100, 2048, 1).seconds / 0.8 + 1e-3)


def test_sequences_fill_what_the_weights_leave() -> None:
    count = most_sequences(LLAMA, H100, 8192)
    room = 0.9 * H100.device.memory.usable_bytes
    taken = [
        weight_bytes(LLAMA, H100) + kv_cache_bytes(LLAMA, 8192, number)
        for number in (count, count + 1)
    ]
    assert taken[0] <= room < taken[1]
    assert most_sequences(load_model("llama-3-70b"), H100, 8192) == 0


def drawn_tokens(acceptance: float, drafts: int, seed: int) -> float:
    """Rounds played out with a coin."""
    coin, total, rounds = random.Random(seed), 0, 40_000
    for _ in range(rounds):
        accepted = 0
        while accepted < drafts and coin.random() < acceptance:
            accepted += 1
        total += accepted + 1
    return total / rounds


@pytest.mark.parametrize(("acceptance", "drafts"), [(0.0, 3), (0.5, 4), (0.8, 5), (1.0, 4)])
def test_expected_tokens_are_those_of_rounds_played_out(acceptance: float, drafts: int) -> None:
    assert expected_tokens(acceptance, drafts) == pytest.approx(
        drawn_tokens(acceptance, drafts, seed=3), rel=0.01
    )


@pytest.mark.parametrize(
    ("acceptance", "drafts", "speed"),
    [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71),
     (0.9, 10, 6.86)],
)  # fmt: skip
def test_free_drafts_gain_what_leviathans_table_1_says(
    acceptance: float, drafts: int, speed: float
) -> None:
    # Table 1 of 2211.17192: speed at c = 0.
    gain = speculative_speedup(acceptance, drafts, draft_seconds=0.0, target_seconds=1.0)
    assert gain == pytest.approx(speed, abs=0.006)


@given(acceptance=st.floats(0.0, 0.99), cost=st.floats(0.001, 2.0))
@settings(max_examples=60)
def test_the_best_number_of_drafts_is_the_best_of_all(acceptance: float, cost: float) -> None:
    def gain(count: int) -> float:
        return speculative_speedup(acceptance, count, draft_seconds=cost, target_seconds=1.0)

    best = best_num_drafts(acceptance, draft_seconds=cost, target_seconds=1.0)
    assert all(gain(best) >= gain(count) for count in range(65))


def test_a_compute_bound_check_takes_the_gain_away() -> None:
    gain = speculative_speedup(0.8, 5, draft_seconds=2e-3, target_seconds=30e-3, check_factor=4.0)
    assert gain < 1.0


@pytest.mark.parametrize(("acceptance", "drafts"), [(1.2, 3), (-0.1, 3), (0.5, -1)])
def test_impossible_acceptances_are_refused(acceptance: float, drafts: int) -> None:
    with pytest.raises(ValueError):
        expected_tokens(acceptance, drafts)
