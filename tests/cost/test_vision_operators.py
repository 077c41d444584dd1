"""Operators of vision networks: FLOPs, traffic, what training adds and inference folds."""

from __future__ import annotations

import pytest

from ridgeline.cost.operator import ModelOperator
from ridgeline.cost.vision_operators import vision_operators
from ridgeline.errors import InputError
from ridgeline.models.vision.network import MULTIPLYING
from ridgeline.models.vision.presets import load_network


def flops(operators: list[ModelOperator]) -> float:
    return sum(one.flops * one.count for one in operators if one.kind != "elementwise")


@pytest.mark.parametrize("name", ["resnet50", "mobilenetv3_large_100", "efficientnet_b4", "vgg16"])
def test_convolutions_do_two_flops_per_mac(name: str) -> None:
    network = load_network(name)
    assert flops(vision_operators(network, 4, "prefill")) == 8.0 * network.macs


def test_training_does_three_passes_but_for_the_image_itself() -> None:
    network = load_network("resnet50")
    first = network.operators[0]
    found = flops(vision_operators(network, 1, "train"))
    assert found == 6.0 * network.macs - 2.0 * first.macs


def test_fused_attention_s_backward_pass_computes_its_scores_again() -> None:
    network = load_network("vit_small_patch16_224")
    products = sum(2.0 * one.macs * one.count for one in network.operators if one.kind == "product")
    for phase, times in (("prefill", 1.0), ("train", 3.5)):
        found = [one for one in vision_operators(network, 1, phase) if one.kind == "attention"]
        work = sum(one.flops * one.count for one in found)
        assert work == pytest.approx(times * products)


def test_fused_attention_moves_queries_keys_values_and_results_alone() -> None:
    network = load_network("vit_small_patch16_224")
    found = [o for o in vision_operators(network, 2, "prefill") if o.kind == "attention"]
    moved = sum(one.moved_bytes * one.count for one in found)
    assert moved == 12 * 2 * 4 * 197 * 384 * 2.0  # layers, images, q k v o, tokens, width, bytes


def test_inference_folds_the_batch_norms_of_convolutions_alone() -> None:
    resnet, vit = load_network("resnet50"), load_network("vit_small_patch16_224")
    trained = [one.name for one in vision_operators(resnet, 1, "train")]
    inferred = [one.name for one in vision_operators(resnet, 1, "prefill")]
    assert any(name.startswith("batch_norm") for name in trained)
    assert not any(name.startswith("batch_norm") for name in inferred)
    assert any(one.name.startswith("layer_norm") for one in vision_operators(vit, 1, "prefill"))


def test_weights_are_read_once_whatever_the_batch() -> None:
    network = load_network("vgg16")
    one, eight = (
        sum(op.moved_bytes * op.count for op in vision_operators(network, batch, "prefill"))
        for batch in (1, 8)
    )
    weights = sum(
        2.0 * one.weight_elements * one.count
        for one in network.operators
        if one.kind in MULTIPLYING
    )
    assert eight == pytest.approx(8 * (one - weights) + weights)


@pytest.mark.parametrize(
    ("batch", "phase", "message"),
    [(0, "train", "it must be 1 or more"), (1, "decode", "generates no tokens")],
)
def test_what_cannot_be_is_refused(batch: int, phase: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        vision_operators(load_network("resnet50"), batch, phase)
