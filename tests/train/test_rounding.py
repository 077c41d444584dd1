"""Training with rounded weights: what it computes is what compression then saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.checkpoint.recipes import small_run
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from ridgeline.errors import InputError
from ridgeline.records.scheme_names import parse
from ridgeline.train.check import check
from ridgeline.train.rounding import RoundedLinear, round_linears, scheme_of, straight_through

SCHEMES = (
    "w4a16-rtn-g16", "w4a16-rtn-g16-asym", "w8a8-rtn", "w3a16-rtn-channel", "fp8-rtn", "mxfp4-rtn",
    "nvfp4a16-rtn",
)  # fmt: skip


def model_of(width: int = 96) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32, hidden_size=64, intermediate_size=width, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
        )
    ).eval()  # fmt: skip


@pytest.mark.parametrize("name", SCHEMES)
def test_the_forward_pass_sees_what_compression_saves(name: str, tmp_path: Path) -> None:
    from ridgeline.compress.rounding import to_nearest

    recipe = small_run(tmp_path, quantisation={"scheme": name})
    scheme = parse(name)
    assert scheme.weights is not None
    trained = model_of()
    names = [n for n, _ in trained.named_parameters()]
    round_linears(trained, recipe)
    assert [n for n, _ in trained.named_parameters()] == names
    saved = model_of()
    for path, module in saved.named_modules():
        if isinstance(module, nn.Linear) and path != "lm_head":
            rounded = to_nearest(module.weight.data, scheme.weights, path).dequantised()
            module.weight.data.copy_(rounded)
    if scheme.activations is not None:
        for path, module in saved.named_modules():
            if isinstance(module, nn.Linear) and path != "lm_head":
                module.register_forward_pre_hook(
                    lambda _, args: (_nearest(args[0], scheme.activations),)
                )
    tokens = torch.randint(0, 32, (2, 8), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(trained(tokens).logits, saved(tokens).logits)
    assert type(trained.lm_head) is nn.Linear


def _nearest(x: torch.Tensor, form: Any) -> torch.Tensor:
    from ridgeline.compress.rounding import to_nearest

    flat = x.flatten(0, -2)
    return to_nearest(flat, form).dequantised().view_as(x)


def test_the_gradient_goes_straight_through_to_the_exact_weight() -> None:
    form = parse("w4a16-rtn-g16").weights
    assert form is not None
    weight = torch.randn(4, 32, requires_grad=True)
    x = torch.randn(3, 32)
    rounded = straight_through(weight, form)
    assert not torch.equal(rounded, weight)
    (x @ rounded.T).square().sum().backward()
    by_hand = (2 * (x @ rounded.T)).T @ x
    torch.testing.assert_close(weight.grad, by_hand.detach())


def test_what_is_trained_rounded_loses_less_by_rounding(tmp_path: Path) -> None:
    recipe = small_run(tmp_path, quantisation={"scheme": "w2a16-rtn-channel"})
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 32, (8, 16), generator=generator)
    losses = {}
    for rounded in (False, True):
        model = model_of().train()
        if rounded:
            round_linears(model, recipe)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(40):
            optimizer.zero_grad()
            model(tokens, labels=tokens).loss.backward()
            optimizer.step()
        if not rounded:
            round_linears(model, recipe)
        with torch.no_grad():
            losses[rounded] = float(model(tokens, labels=tokens).loss)
    assert losses[True] < 0.8 * losses[False]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("w4a16-gptq", "is gptq"),
        ("w4a16-rtn-mse", "searches its range"),
        ("w8a8-rtn-static", "static ranges"),
        ("2:4", "how weights alone are rounded"),
        ("w4a16-kvfp8", "how weights alone are rounded"),
        ("w5b16", "unknown|does not say"),
    ],
)
def test_schemes_that_training_cannot_follow_are_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scheme_of(name)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"layout": {"tp": 2}}, "tp 2 cuts rows"),
        ({"layout": {"precision": "fp8"}}, "its own way"),
        (
            {"layout": {"dp": 2, "fsdp": 2, "zero": 3, "precision": "bf16"}},
            "gathers weights as bf16",
        ),
        ({"adapter": {}}, "freezes"),
        ({"kind": "mixtral"}, "experts"),
    ],
)
def test_layouts_that_would_round_otherwise_are_refused(
    tmp_path: Path, tables: dict[str, Any], message: str
) -> None:
    tables = {"kind": "llama-tied", "quantisation": {"scheme": "w4a16-rtn-g16"}} | tables
    with pytest.raises(InputError, match=message):
        check(small_run(tmp_path, **tables))


def test_a_depth_that_groups_do_not_divide_names_the_layer(tmp_path: Path) -> None:
    recipe = small_run(tmp_path, quantisation={"scheme": "w4a16-rtn-g32"})
    with pytest.raises(InputError, match=r"100 inputs of model\.layers\.0\.mlp\.down_proj"):
        round_linears(model_of(width=100), recipe)


def test_a_model_without_linear_layers_is_refused(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    recipe = small_run(tmp_path, quantisation={"scheme": "w8a8-rtn"})
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=8, n_layer=1, n_head=2, n_positions=8))
    with pytest.raises(InputError, match="keeps its weights turned"):
        round_linears(model, recipe)


def test_a_rounded_layer_is_still_a_linear_layer(tmp_path: Path) -> None:
    recipe = small_run(tmp_path, quantisation={"scheme": "w8a8-rtn"})
    model = model_of()
    round_linears(model, recipe)
    layer = model.model.layers[0].mlp.up_proj
    assert isinstance(layer, RoundedLinear)
    assert isinstance(layer, nn.Linear)
    assert layer(torch.zeros(0, 64)).shape == (0, 96)
