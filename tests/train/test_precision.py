"""The loss scale is torch's, agreed on by all ranks; devices without float8 are told so."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train.processes import run_ranks
from torch import nn

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import (
    Recipe,
    RecipeData,
    RecipeModel,
    RecipeOptimizer,
    RecipePrecision,
)
from ridgeline.train.optimizers.build import build_optimizer
from ridgeline.train.precision import Precision, to_float8
from ridgeline.train.ranks import Ranks


def recipe_of(precision: str, **more: Any) -> Recipe:
    return Recipe(
        model=RecipeModel(config="none"),
        data=RecipeData(seq=8),
        layout=Layout(precision=precision),  # type: ignore[arg-type]
        optimizer=RecipeOptimizer(
            name="sgd", learning_rate=0.1, final_learning_rate=0.1, momentum=0.0, weight_decay=0.0
        ),
        precision=RecipePrecision(**more),
    )


def alone() -> Ranks:
    """Precision asks only for the device."""
    values: Any = dict.fromkeys(("layout", "mesh", "axes"))
    return Ranks(**values, device=torch.device("cpu"), rank=0, world=1, local_rank=0, local_world=1)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([1.0, -2.0, 0.0, math.inf, math.nan]), max_size=25), st.integers(1, 5)
)
def test_scale_and_steps_are_those_of_torchs_scaler(course: list[float], interval: int) -> None:
    recipe = recipe_of("fp16", loss_scale=1024.0, growth_interval=interval)
    precision = Precision(recipe, alone())
    reference = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=interval)
    mine, other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    other.load_state_dict(mine.state_dict())
    optimizer = build_optimizer([mine], recipe, None)  # type: ignore[arg-type]
    sgd = torch.optim.SGD(other.parameters(), lr=0.1)
    skipped = 0
    for value in course:
        x = torch.tensor([[value]])
        precision.scale(mine(x).sum()).backward()
        reference.scale(other(x).sum()).backward()
        precision.unscale(optimizer)
        stepped = precision.step(optimizer)
        reference.step(sgd)
        reference.update()
        optimizer.zero_grad()
        sgd.zero_grad()
        skipped += not math.isfinite(value)
        assert stepped == math.isfinite(value)
        assert precision.loss_scale == reference.get_scale()
        assert torch.equal(mine.weight, other.weight)
    assert precision.skipped_steps == skipped
    resumed = Precision(recipe, alone())
    resumed.load_state_dict(precision.state_dict())
    assert resumed.state_dict() == precision.state_dict()


def rank_with_overflow(_: Any) -> list[Any]:
    """On each rank: one step in which the last rank alone overflows, then one that is fine."""
    from ridgeline.train.ranks import join, leave

    layout = Layout(precision="fp16", pp=2)
    recipe = msgspec.structs.replace(recipe_of("fp16", loss_scale=8.0), layout=layout)
    ranks = join(layout, timeout_seconds=60)
    precision = Precision(recipe, ranks)
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = build_optimizer([model], recipe, ranks)
    seen: list[Any] = []
    for overflow in (True, False):
        scale = precision.loss_scale
        model.weight.grad = torch.full((1, 1), math.inf if overflow and ranks.rank else 2.0 * scale)
        precision.unscale(optimizer)
        seen.append((precision.step(optimizer), precision.loss_scale, model.weight.item()))
    leave()
    return [*seen, precision.skipped_steps]


@pytest.mark.multiprocess
def test_an_overflow_on_one_pipeline_stage_skips_the_step_on_all() -> None:
    for result in run_ranks(2, "tests.train.test_precision:rank_with_overflow"):
        assert result == [(False, 4.0, 1.0), (True, 4.0, pytest.approx(0.8)), 1]


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_passes_multiply_in_the_layouts_precision(name: str, dtype: torch.dtype) -> None:
    precision = Precision(recipe_of(name), alone())
    with precision.autocast():
        assert nn.Linear(4, 4)(torch.ones(1, 4)).dtype is dtype
    assert precision.loss_scale == 1.0


def test_a_precision_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(InputError, match=r'layout\.precision "fp8".*bf16'):
        Precision(recipe_of("fp8"), alone())


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_a_precision_that_nothing_here_trains_in_is_refused_wherever_it_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f"""model.config = "gpt2"
data = {{path = "x", seq = 8}}
layout.precision = "{name}"
optimizer = {{learning_rate = 1e-3, final_learning_rate = 1e-4}}
run.steps = 1
"""
    )
    asked = f"training --model gpt2 --cluster 8xB200 --seq 128 --global-batch 8 --precision {name}"
    for line in (
        f"train {recipe}",
        f"launch {recipe} --on local",
        f"predict {asked}",
        f"plan {asked}",
        f"plan {asked} --software megatron-2026 --write {tmp_path / 'new.toml'}",
    ):
        assert run(line.split()) == 2, line
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1), err
        assert name in err
        assert "fp32, bf16, fp16, fp8" in err
    assert run(f"predict {asked} --software megatron-2026".split()) == 0
    assert name in capsys.readouterr().out


def test_float8_layers_are_close_to_what_they_replace_and_leave_the_head() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"up": nn.Linear(32, 64), "odd": nn.Linear(30, 64), "lm_head": nn.Linear(64, 32)}
    )
    x = torch.randn(16, 32, requires_grad=True)
    before = model["up"](x)
    (gradient,) = torch.autograd.grad(before.sum(), x)
    to_float8(model, emulate=True)
    kinds = {name: type(layer).__name__ for name, layer in model.items()}
    assert kinds == {"up": "Float8Linear", "odd": "Linear", "lm_head": "Linear"}
    after = model["up"](x)
    (gradient8,) = torch.autograd.grad(after.sum(), x)
    # e4m3 keeps 4 significant bits: a product of two is off by up to 2^-3, a sum of 32 by less.
    assert 0.0 < float((after - before).norm().detach() / before.norm().detach()) < 0.06
    assert float((gradient8 - gradient).norm() / gradient.norm()) < 0.06
