"""Each rule against its paper's formulas in float64, and on a task that it must learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from ridgeline.errors import InputError
from ridgeline.records.recipe import (
    Recipe,
    RecipeData,
    RecipeModel,
    RecipeOptimizer,
    RecipePrecision,
)
from ridgeline.train.optimizers.build import as_one_module, build_optimizer, named_parameters
from ridgeline.train.optimizers.muon import orthogonalised
from ridgeline.train.optimizers.shards import Rounding

Array = NDArray[np.float64]
STEPS = 6
RATE, DECAY = 0.02, 0.1


def recipe_of(name: str, **optimizer: Any) -> Recipe:
    settings = {"learning_rate": RATE, "weight_decay": DECAY, "warmup_steps": 0} | optimizer
    return Recipe(
        model=RecipeModel(config="none"),
        data=RecipeData(seq=8),
        optimizer=RecipeOptimizer(name=name, final_learning_rate=0.0, **settings),  # type: ignore[arg-type]
    )


def _adamw(weight: Array, gradients: list[Array], decay: float) -> Array:
    """arXiv 1711.05101, algorithm 2 (lines 6 to 12)."""
    m = v = np.zeros_like(weight)
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        step = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
        weight = weight - RATE * (step + decay * weight)
    return weight


def _lion(weight: Array, gradients: list[Array], decay: float) -> Array:
    """arXiv 2302.06675, algorithm 2."""
    m = np.zeros_like(weight)
    for g in gradients:
        weight = weight - RATE * (np.sign(0.9 * m + 0.1 * g) + decay * weight)
        m = 0.95 * m + 0.05 * g
    return weight


def _sgd(weight: Array, gradients: list[Array], decay: float) -> Array:
    m = np.zeros_like(weight)
    for g in gradients:
        m = 0.95 * m + g
        weight = weight - RATE * (m + decay * weight)
    return weight


def _adafactor(weight: Array, gradients: list[Array], decay: float) -> Array:
    """arXiv 1804.04235, algorithm 4 (matrices) and 5 (vectors), with means in place of sums."""
    r, c, v = np.zeros((weight.shape[0], 1)), np.zeros((1, weight.shape[-1])), np.zeros_like(weight)
    for t, g in enumerate(gradients, 1):
        size = max(1e-3, math.sqrt(np.mean(weight**2))) * min(RATE, 1 / math.sqrt(t))
        beta = 1 - t**-0.8
        if weight.ndim == 2:
            r = beta * r + (1 - beta) * (g * g).mean(axis=1, keepdims=True)
            c = beta * c + (1 - beta) * (g * g).mean(axis=0, keepdims=True)
            v = r * c / r.mean()
        else:
            v = beta * v + (1 - beta) * g * g
        update = g / np.sqrt(v)
        update = update / max(1.0, math.sqrt(np.mean(update**2)))
        weight = weight * (1 - RATE * decay) - size * update
    return weight


@pytest.mark.parametrize(
    ("name", "reference"),
    [("adamw", _adamw), ("lion", _lion), ("sgd", _sgd), ("adafactor", _adafactor)],
)
def test_steps_are_those_of_the_paper(
    name: str, reference: Callable[[Array, list[Array], float], Array]
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 7).double()
    before = [p.detach().numpy().copy() for p in model.parameters()]
    gradients = [[torch.randn_like(p) for p in model.parameters()] for _ in range(STEPS)]
    optimizer = build_optimizer([model], recipe_of(name), None)  # type: ignore[arg-type]
    for step in gradients:
        for parameter, gradient in zip(model.parameters(), step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    for index, (parameter, decay) in enumerate(zip(model.parameters(), (DECAY, 0.0), strict=True)):
        course = [step[index].numpy() for step in gradients]
        expected = reference(before[index], course, decay)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-10)


class _Blocks(nn.Module):
    """A tiny language model with named blocks: predicts the next of a repeating pattern."""

    def __init__(self, vocabulary: int = 12, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(self.norm(x))


_RATES = {
    "adamw": 3e-3,
    "adamw8bit": 3e-3,
    "adafactor": 2e-2,
    "lion": 1e-3,
    "muon": 3e-3,
    "sgd": 0.1,
}


@pytest.mark.sweep("sgd", "lion", "adafactor", "adamw8bit")
@pytest.mark.parametrize("name", _RATES)
def test_a_small_language_model_learns_a_pattern(name: str) -> None:
    torch.manual_seed(0)
    model = _Blocks()
    tokens = torch.randperm(12).repeat(4)
    recipe = recipe_of(name, learning_rate=_RATES[name], weight_decay=0.0)
    optimizer = build_optimizer([model], recipe, None)  # type: ignore[arg-type]
    losses = []
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(tokens[:-1]), tokens[1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] > math.log(12) - 0.5
    assert losses[-1] < 0.25


def test_muon_is_torchs_on_the_matrices_of_blocks_and_adamw_on_the_rest() -> None:
    torch.manual_seed(0)
    model, twin = _Blocks(), _Blocks()
    twin.load_state_dict(model.state_dict())
    recipe = recipe_of("muon", adam_learning_rate=1e-3)
    optimizer = build_optimizer([model], recipe, None)  # type: ignore[arg-type]
    inside = [layer.weight for layer in twin.layers]
    matrices = [twin.embed.weight, twin.head.weight]
    others = [p for p in twin.parameters() if p.ndim < 2]
    references: list[torch.optim.Optimizer] = [
        torch.optim.Muon(inside, lr=RATE, weight_decay=DECAY, momentum=0.95),
        torch.optim.AdamW(matrices, lr=1e-3, betas=(0.9, 0.95), weight_decay=DECAY),
        torch.optim.AdamW(others, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    for _ in range(4):
        for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        optimizer.step()
        for reference in references:
            reference.step()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)


def test_muon_with_one_rate_moves_matrices_as_far_as_adamw_does() -> None:
    torch.manual_seed(0)
    model = _Blocks()
    before = model.layers[0].weight.detach().clone()
    recipe = recipe_of("muon", weight_decay=0.0)
    optimizer = build_optimizer([model], recipe, None)  # type: ignore[arg-type]
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    moved = (model.layers[0].weight.detach() - before).square().mean().sqrt()
    # 0.2 is AdamW's usual update in units of the rate (arXiv 2502.16982, section 2.2).
    assert 0.15 * RATE < float(moved) < 0.25 * RATE


def test_a_stack_of_matrices_is_made_orthogonal_one_by_one() -> None:
    torch.manual_seed(0)
    stack = torch.randn(3, 8, 16)
    whole = orthogonalised(stack.clone())
    for matrix, alone in zip(stack, whole, strict=True):
        assert torch.equal(orthogonalised(matrix.clone()), alone)
        values = torch.linalg.svdvals(alone.float())
        assert 0.5 < float(values.min()) <= float(values.max()) < 1.5


def test_frozen_parameters_get_neither_steps_nor_state() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(requires_grad=False)
    before = model[0].weight.clone()
    optimizer = build_optimizer([model], recipe_of("adamw"), None)  # type: ignore[arg-type]
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert torch.equal(model[0].weight, before)
    assert len(optimizer.state) == 2
    model.requires_grad_(requires_grad=False)
    with pytest.raises(InputError, match="no parameter is trainable"):
        build_optimizer([model], recipe_of("adamw"), None)  # type: ignore[arg-type]


def test_eight_bit_moments_take_a_quarter_of_the_memory() -> None:
    model = nn.Linear(256, 256, bias=False)
    optimizer = build_optimizer([model], recipe_of("adamw8bit"), None)  # type: ignore[arg-type]
    model.weight.grad = torch.randn(256, 256)
    optimizer.step()
    moment = optimizer.state[model.weight]["exp_avg"]
    assert moment.codes.dtype is torch.uint8
    assert moment.codes.nbytes + moment.scale.nbytes < 0.27 * model.weight.nbytes


def test_rounding_by_chance_is_right_on_average_and_never_off_by_a_unit() -> None:
    exact = torch.linspace(-3.0, 3.0, 997)
    rounding = Rounding(seed=1)
    draws = torch.empty(400, 997, dtype=torch.bfloat16)
    for key, draw in enumerate(draws):
        rounding(exact, draw, (key,))
    # A unit in bf16's last place is at most 2^-7 of the number.
    unit = exact.abs() * 2.0**-7
    assert bool(((draws.float() - exact).abs() <= unit).all())
    error = (draws.float().mean(dim=0) - exact).abs()
    assert bool((error <= 5 * unit / math.sqrt(12 * 400) + 1e-6).sum() > 0.97 * 997)
    special = torch.tensor([math.inf, -math.inf, 0.0])
    rounded = torch.empty(3, dtype=torch.bfloat16)
    rounding(special, rounded, (0,))
    assert torch.equal(rounded.float(), special)


@pytest.mark.parametrize("name", ["adamw", "lion", "muon", "sgd", "adafactor"])
def test_updates_below_half_a_unit_are_not_lost_when_rounded_by_chance(name: str) -> None:
    moved = {}
    for chance in (False, True):
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(64, 64, bias=False)]).bfloat16()
        nn.init.ones_(model[0].weight)
        recipe = recipe_of(name, learning_rate=2e-4, weight_decay=0.0, momentum=0.0)
        precision = RecipePrecision(weights="bf16", stochastic_rounding=chance)
        recipe = msgspec.structs.replace(recipe, precision=precision)
        optimizer = build_optimizer([model], recipe, None)  # type: ignore[arg-type]
        for _ in range(20):
            model[0].weight.grad = torch.eye(64, dtype=torch.bfloat16) + 0.5
            optimizer.step()
        moved[chance] = float((model[0].weight.detach().float() - 1.0).abs().mean())
    assert moved[False] == 0.0
    assert moved[True] > 1e-5


def test_rounding_by_chance_wants_bf16_weights() -> None:
    precision = RecipePrecision(stochastic_rounding=True)
    wrong = msgspec.structs.replace(recipe_of("adamw"), precision=precision)
    with pytest.raises(InputError, match="for bf16 weights"):
        build_optimizer([nn.Linear(2, 2)], wrong, None)  # type: ignore[arg-type]


def test_names_are_those_of_the_model_whatever_wraps_it() -> None:
    model = _Blocks()
    plain = [name for name, _ in named_parameters([model])]
    compiled = torch.compile(_Blocks())
    assert [name for name, _ in named_parameters([compiled])] == plain
    parts = [model.layers, model.norm]
    assert len(list(as_one_module([model]).parameters())) == len(plain)
    assert [name for name, _ in named_parameters(parts)][-1] == "bias"
