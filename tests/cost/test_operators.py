"""Operators of layers: their FLOPs are those of the parameters, whoever counts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.attention_operators import pairs
from ridgeline.cost.operator import ModelOperator
from ridgeline.cost.operators import end_operators, layer_operators, model_operators
from ridgeline.cost.roofline import place_operators
from ridgeline.cost.serving.kv_cache import kv_cache_bytes, layer_bytes_per_token
from ridgeline.errors import InputError
from ridgeline.hardware import device
from ridgeline.models import ModelSpec, load_model, preset_names
from ridgeline.models.counts import (
    active_routed_parameters,
    head_parameters,
    total_layers_parameters,
)
from ridgeline.models.spec import num_layers

DECODERS = [name for name in preset_names() if load_model(name).kind == "decoder"]
SEQ = 512


def flops(operators: list[ModelOperator], kind: str = "matmul") -> float:
    return sum(one.flops * one.count for one in operators if one.kind == kind)


def small(**changes: object) -> ModelSpec:
    usual: dict[str, object] = {
        "name": "small", "family": "llama", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2,
        "head_dim": 16, "ffn": 128, "gated_mlp": True, "vocab": 1000,
    }  # fmt: skip
    return ModelSpec(**{**usual, **changes})  # type: ignore[arg-type]


@pytest.mark.sweep(every=10)
@pytest.mark.parametrize("name", DECODERS)
def test_products_do_two_flops_per_weight_and_token(name: str) -> None:
    """Weights as `models/counts.py` counts them, which is how transformers does."""
    model = load_model(name)
    # Enough tokens that every expert is reached.
    batch = 64 if model.experts else 1
    layers = total_layers_parameters(model)
    weights = layers.total - layers.norms - layers.routed_experts + active_routed_parameters(model)
    head = model.vocab * model.hidden if model.head == "lm" else head_parameters(model)
    weights += model.extra.get("indexer", 0)
    expected = 2.0 * batch * SEQ * weights + 2.0 * batch * head
    found = flops(model_operators(model, SEQ, batch, phase="prefill"))
    # Biases, norms inside attention and sinks are weights without a product: below 1 %.
    assert found == pytest.approx(expected, rel=0.012)


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt2", "mixtral-8x7b", "deepseek-v3"])
def test_training_does_three_times_the_products_of_a_forward_pass(name: str) -> None:
    model = load_model(name)
    forward = [one for one in model_operators(model, SEQ, 2) if one.direction == "forward"]
    assert flops(model_operators(model, SEQ, 2)) == pytest.approx(3 * flops(forward))


def test_attention_backward_does_two_and_a_half_times_its_forward() -> None:
    found = layer_operators(small(), 256, 2)
    forward, backward = (one for one in found if one.kind == "attention")
    assert backward.flops == 2.5 * forward.flops
    assert forward.flops == 4 * 2 * 4 * 16 * pairs(256, 0, causal=True)


@given(seq=st.integers(1, 200), window=st.integers(0, 220))
@settings(deadline=None)
def test_the_pairs_of_a_causal_window_are_those_of_a_loop(seq: int, window: int) -> None:
    seen = sum(min(row, window or seq) for row in range(1, seq + 1))
    assert pairs(seq, window, causal=True) == seen


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "gpt2", "deepseek-v3"])
def test_tensor_parallel_devices_share_the_products(name: str) -> None:
    model = load_model(name)
    whole, half = (flops(layer_operators(model, SEQ, 8, tp)) for tp in (1, 2))
    # Routers and latent down-projections stay whole.
    assert whole / 2 <= half < 0.54 * whole


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-2-70b", "gpt2"])
def test_decoding_reads_the_weights_and_the_cache_once(name: str) -> None:
    model = load_model(name)
    found = model_operators(model, 1000, 4, phase="decode")
    attention = sum(one.moved_bytes * one.count for one in found if one.kind == "attention")
    products = sum(one.moved_bytes * one.count for one in found if one.kind == "matmul")
    layers = total_layers_parameters(model)
    weights = 2.0 * (layers.total + model.vocab * model.hidden)
    assert attention == pytest.approx(kv_cache_bytes(model, 1000, 4), rel=0.02)
    assert products == pytest.approx(weights, rel=0.02)


def test_latent_attention_decodes_from_its_compressed_cache() -> None:
    model = load_model("deepseek-v3")
    found = layer_operators(model, 4096, 1, phase="decode")
    attention = next(one for one in found if one.kind == "attention")
    cache = 4096 * layer_bytes_per_token(model)
    assert attention.moved_bytes == pytest.approx(cache, rel=0.07)
    # 128 heads share every byte: far right of grouped queries, near the ridge.
    assert attention.intensity > 200


def test_windowed_layers_see_less() -> None:
    wide, narrow = small(), small(sliding_window=32, full_attention_every=0)
    assert flops(layer_operators(narrow, 512, 1, layer=0), "attention") < 0.2 * flops(
        layer_operators(wide, 512, 1, layer=0), "attention"
    )


def test_a_mixture_at_one_token_reads_its_top_k_experts_only() -> None:
    model = load_model("mixtral-8x7b")
    found = layer_operators(model, 100, 1, phase="decode")
    up = next(one for one in found if one.name == "expert up")
    assert up.shape.startswith("2 x 1 x 4096")


def test_a_few_tokens_reach_a_few_experts() -> None:
    model = load_model("deepseek-v3")
    read = [
        sum(
            one.moved_bytes
            for one in layer_operators(model, 100, batch, phase="decode")
            if one.name.startswith("expert ")
        )
        for batch in (1, 16, 4096)
    ]
    # 16 tokens of 8 experts each reach 256 (1 - (1 - 8/256)^16) = 102 of 256 experts.
    assert read[1] / read[0] == pytest.approx(102 / 8, rel=0.01)
    assert read[2] / read[0] < 256 / 8 * 2


def test_serving_computes_the_logits_of_last_tokens_only() -> None:
    model = load_model("llama-3-8b")
    heads = [
        next(one for one in end_operators(model, SEQ, 4, phase=phase) if one.name == "head")
        for phase in ("train", "prefill", "decode")
    ]
    assert [one.flops / heads[1].flops for one in heads] == [SEQ, 1.0, 1.0]


def test_every_layer_of_every_preset_has_operators() -> None:
    for name in preset_names():
        model = load_model(name)
        for layer in {0, num_layers(model) - 1}:
            for one in layer_operators(model, 64, 2, layer=layer):
                assert one.moved_bytes > 0
                assert one.flops >= 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"tp": 3}, "tp 3 does not divide the 4 heads"),
        ({"batch": 0}, "must be 1 or more"),
        ({"dtype": "fp7"}, "fp7: not a known dtype"),
    ],
)
def test_what_cannot_be_computed_is_refused(call: dict[str, object], message: str) -> None:
    usual: dict[str, object] = {"seq": 64, "batch": 1}
    with pytest.raises(InputError, match=message):
        layer_operators(small(), **{**usual, **call})  # type: ignore[arg-type]


def test_an_encoder_does_not_decode() -> None:
    with pytest.raises(InputError, match="generates no tokens"):
        model_operators(small(kind="encoder"), 64, 1, phase="decode")


def test_shares_add_up_and_least_times_are_at_the_roof() -> None:
    roof = place_operators(model_operators(load_model("gpt2"), 1024, 8), device("a100"), "bf16")
    assert sum(one.share for one in roof.operators) == pytest.approx(1.0)
    for one in roof.operators:
        if one.flops:
            assert one.flops / one.seconds == pytest.approx(one.attainable_flops_per_second)
        else:
            assert one.moved_bytes / one.seconds == pytest.approx(roof.bandwidth_bytes_per_second)
        inside = one.intensity_flops_per_byte >= roof.ridge_flops_per_byte
        assert (one.bound == "compute") == (inside and one.kind != "elementwise")
