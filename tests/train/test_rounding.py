"""Training with rounded weights: what it computes is what compression then saves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.checkpoint.recipes import small_run
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from ridgeline.checkpoints.compressed_tensors import WeightReader
from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress.run import CompressionJob, stage
from ridgeline.errors import InputError
from ridgeline.kernels.number_formats.grid import in_groups
from ridgeline.records.layout import Layout
from ridgeline.records.scheme_names import parse
from ridgeline.train.build import build
from ridgeline.train.check import check
from ridgeline.train.export import save_model
from ridgeline.train.ranks import Ranks, join, leave
from ridgeline.train.rounding import RoundedLinear, round_linears, scheme_of, straight_through
from ridgeline.train.watch.phases import Phases

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


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    yield join(Layout())
    leave()


@pytest.mark.sweep("w4a16-rtn-g16-asym-bf16")
@pytest.mark.parametrize(
    ("name", "kept"),
    [("w3a16-rtn-g16", "fp32"), ("w4a16-rtn-g16-asym", "bf16"), ("mxfp4-rtn", "fp32")],
)
def test_a_directory_that_compress_writes_holds_what_training_multiplied_by(
    name: str, kept: str, tmp_path: Path, ranks: Ranks
) -> None:
    recipe = small_run(
        tmp_path,
        kind="llama-tied",
        quantisation={"scheme": name},
        precision={"weights": kept},
        optimizer={"learning_rate": 0.01},
    )
    config = tmp_path / "llama-tied" / "config.json"
    one = {"num_hidden_layers": 1, "intermediate_size": 64}
    config.write_text(json.dumps(json.loads(config.read_text()) | one))
    built = build(recipe, ranks, Phases(ranks.device))
    (part,) = built.passes.modules
    tokens = torch.randint(0, 260, (4, 16), generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        part(tokens, labels=tokens).loss.backward()
        built.optimizer.step()
        built.optimizer.zero_grad()
    save_model([part], recipe, ranks, tmp_path / "model", None)

    job = CompressionJob(model=tmp_path / "model", schemes=(parse(name),), work=tmp_path / "work")
    stage(job).save(tmp_path / "small")
    saved = WeightReader(tmp_path / "small")
    layers = {n: m for n, m in part.named_modules() if isinstance(m, RoundedLinear)}
    quantised = {n for n in saved.names if isinstance(saved.read(n), Quantised)}
    assert quantised == {f"{n}.weight" for n in layers}
    for path, layer in layers.items():
        weight = saved.read(f"{path}.weight")
        assert isinstance(weight, Quantised)
        multiplied = straight_through(layer.weight, layer.weight_form)
        assert torch.equal(weight.dequantised().to(multiplied.dtype), multiplied), path


def _nearest(x: torch.Tensor, form: Any) -> torch.Tensor:
    from ridgeline.compress.rounding import to_nearest

    flat = x.flatten(0, -2)
    return to_nearest(flat, form).dequantised().view_as(x)


@pytest.mark.parametrize(
    "name", ["w3a16-rtn-g16", "w4a16-rtn-channel", "w4a16-rtn-g16-asym", "fp8-rtn"]
)
def test_the_gradient_is_that_of_numbers_whose_errors_are_steps_of_the_range(name: str) -> None:
    form = parse(name).weights
    assert form is not None
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 32, generator=generator, dtype=torch.float64).requires_grad_()
    towards = torch.randn(4, 32, generator=generator, dtype=torch.float64)
    rounded = straight_through(weight, form)
    assert not torch.equal(rounded, weight)
    (found,) = torch.autograd.grad((rounded * towards).sum(), weight)

    groups = in_groups(weight, form)
    if form.symmetric:
        width = groups.abs().amax(dim=-1, keepdim=True)
    else:
        high, low = groups.amax(dim=-1, keepdim=True), groups.amin(dim=-1, keepdim=True)
        width = high.clamp(min=0) - low.clamp(max=0)
    error = ((in_groups(rounded, form) - groups) / width).detach()
    same = (groups + error * width).reshape(weight.shape)
    torch.testing.assert_close(same, rounded, rtol=0, atol=1e-6)
    (expected,) = torch.autograd.grad((same * towards).sum(), weight)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_powers_of_two_let_the_gradient_straight_through() -> None:
    form = parse("mxfp4-rtn").weights
    assert form is not None
    weight = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    straight_through(weight, form).sum().backward()
    assert weight.grad is not None
    assert bool((weight.grad == 1).all())


def test_a_group_of_zeros_has_a_gradient_too() -> None:
    form = parse("w4a16-rtn-g16").weights
    assert form is not None
    weight = torch.zeros(2, 32, requires_grad=True)
    straight_through(weight, form).sum().backward()
    assert weight.grad is not None
    assert bool((weight.grad == 1).all())


@pytest.mark.slow
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
