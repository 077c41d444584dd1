"""Pipelines balanced by what layers take here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe, RecipeData, RecipeModel, RecipeOptimizer, RecipeRun
from ridgeline.train.parallel.layer_times import LayerTimes, measured_times
from ridgeline.train.parallel.stages import _layers_of, check_family, cut, take_stage

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 4, "max_position_embeddings": 128}


def empty(**changes: Any) -> Any:
    with torch.device("meta"):
        config = AutoConfig.for_model("llama", **SIZES, num_hidden_layers=8, **changes)
        return AutoModelForCausalLM.from_config(config)


def recipe(**layout: Any) -> Recipe:
    return Recipe(
        model=RecipeModel(config="llama"),
        data=RecipeData(path="text", seq=32),
        layout=Layout(pp=2, precision="fp32", **layout),
        optimizer=RecipeOptimizer(learning_rate=1e-3, final_learning_rate=1e-4, warmup_steps=1),
        run=RecipeRun(steps=1, balance="measured"),
    )


def alone(stage: int = 0) -> Any:
    """The place of a process that measures and has nobody to tell."""
    return SimpleNamespace(rank=0, device=torch.device("cpu"), index=lambda _: stage)


def times(model: Any, wanted: Recipe) -> LayerTimes:
    around = check_family(model, 2)
    holder, name = _layers_of(model)
    return measured_times(
        model,
        getattr(holder, name),
        lambda whole, splits, index: take_stage(whole, splits, index, around),
        wanted,
        alone(),
    )


def test_each_kind_of_layer_has_one_time() -> None:
    dense = times(empty(vocab_size=64), recipe())
    assert len(dense.layers) == 8
    assert len(set(dense.layers)) == 1
    assert min(dense.layers) > 0.0 <= min(dense.before, dense.behind)
    types = ["full_attention", "full_attention", "full_attention", "sliding_attention"] * 2
    mixed = times(empty(vocab_size=64, layer_types=types), recipe())
    assert len(set(mixed.layers)) == 2
    assert [one == mixed.layers[0] for one in mixed.layers] == [True, True, True, False] * 2


@pytest.mark.parametrize(("behind", "first_stage"), [(0.0, 4), (4.0, 6)])
def test_stages_are_evened_out_by_what_was_measured(
    behind: float, first_stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = LayerTimes(layers=[1.0] * 8, before=0.0, behind=behind)
    monkeypatch.setattr("ridgeline.train.parallel.stages.measured_times", lambda *_: found)
    held = [
        stage.stage_place.layers
        for rank in (0, 1)
        for stage in cut(empty(vocab_size=64), recipe(), alone(rank))
    ]
    assert held == [range(first_stage), range(first_stage, 8)]


def test_recomputed_layers_count_their_forward_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(
        "ridgeline.train.parallel.layer_times.perf_counter", lambda: float(next(clock))
    )
    model = empty(vocab_size=64)
    assert times(model, recipe()).layers == [2.0] * 8
    assert times(model, recipe(recompute="full")).layers == [3.0] * 8
    assert msgspec.structs.asdict(recipe().run)["balance"] == "measured"
