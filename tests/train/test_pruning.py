"""Weights that training sets to zero: which, when, and that they stay zero in every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.checkpoint.recipes import small_run
from tests.train.checkpoint.resume_worker import Outcome, start
from tests.train.processes import run_ranks
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe
from ridgeline.records.recipe_compression import RecipePruning
from ridgeline.train.check import check
from ridgeline.train.pruning import chooses_at, share_at
from ridgeline.train.ranks import join, leave

HALF: dict[str, Any] = {"share": 0.5, "begin_step": 1, "end_step": 4, "every_steps": 2}
TWO_OF_FOUR: dict[str, Any] = {"pattern": [2, 4], "begin_step": 0, "end_step": 4, "every_steps": 1}
LLAMA: dict[str, Any] = {"kind": "llama-tied"}
SHARDED = {"dp": 2, "fsdp": 2, "zero": 3}
ONE: dict[str, dict[str, Any]] = {
    "half": LLAMA | {"pruning": HALF},
    "half with muon": LLAMA | {"pruning": HALF, "optimizer": {"name": "muon"}},
    "half with adafactor": LLAMA | {"pruning": HALF, "optimizer": {"name": "adafactor"}},
    "half in bf16": LLAMA
    | {"pruning": HALF, "precision": {"weights": "bf16", "stochastic_rounding": True}},
}
FEW: dict[str, dict[str, Any]] = {
    "2:4": {"pruning": TWO_OF_FOUR},
    "lottery": LLAMA
    | {
        "lottery": {"share": 0.75, "rounds": 2, "rewind_step": 2},
        "run": {"steps": 4, "log_every": 1},
    },
}
"""What `make test` looks at."""
TWO: dict[str, dict[str, Any]] = {
    "half": LLAMA | {"pruning": HALF, "layout": {"dp": 2}},
    "half, zero 3": LLAMA | {"pruning": HALF, "layout": SHARDED},
    "half, tensor parallel": LLAMA | {"pruning": HALF, "layout": {"tp": 2}},
    "half, pipeline": LLAMA | {"pruning": HALF, "layout": {"pp": 2}},
    "2:4, zero 1": LLAMA | {"pruning": TWO_OF_FOUR, "layout": {"dp": 2, "fsdp": 2, "zero": 1}},
}


def _run(folder: Path, cases: dict[str, dict[str, Any]], ranks: int) -> list[dict[str, Outcome]]:
    recipes = {name: small_run(folder, **tables) for name, tables in cases.items()}
    for recipe in recipes.values():
        check(recipe)
    argument = {"cases": recipes, "folder": str(folder)}
    return run_ranks(ranks, "tests.train.test_pruning:run_cases", argument)


def run_cases(argument: dict[str, Any]) -> dict[str, Outcome]:
    """As a rank: each recipe from its start to its end."""
    torch.set_num_threads(1)
    outcomes = {}
    for name, recipe in argument["cases"].items():
        ranks = join(recipe.layout, timeout_seconds=60)
        outcomes[name] = start(recipe, Path(argument["folder"]) / name, ranks)
    leave()
    return outcomes


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return _run(tmp_path_factory.mktemp("alone"), ONE, 1)[0]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return _run(tmp_path_factory.mktemp("few"), FEW, 1)[0]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Outcome]]:
    return _run(tmp_path_factory.mktemp("together"), TWO, 2)


def _pruned(outcome: Outcome) -> dict[str, Tensor]:
    found = {name: one for name, one in outcome.weights.items() if "_proj" in name or ".c_" in name}
    return {name: one for name, one in found.items() if one.ndim == 2}


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("name", list(ONE))
def test_exactly_half_of_each_layer_is_zero_whatever_optimizer_wrote_there(
    alone: dict[str, Outcome], name: str
) -> None:
    layers = _pruned(alone[name])
    assert layers
    for layer, weight in layers.items():
        # bf16 rounded by chance may make a zero of a weight that stays.
        zeros = int((weight == 0).sum())
        assert zeros >= weight.numel() // 2, layer
        assert zeros <= weight.numel() // 2 * 1.001, layer
    others = [one for n, one in alone[name].weights.items() if n not in layers and one.ndim > 1]
    assert others
    assert all(int((one == 0).sum()) < one.numel() // 100 for one in others)


@pytest.mark.multiprocess
def test_two_of_four_stay(few: dict[str, Outcome]) -> None:
    layers = _pruned(few["2:4"])
    assert len(layers) == 16
    for weight in layers.values():
        # GPT-2 keeps its weights turned: what is multiplied together is a column here.
        assert int((weight.T.unflatten(1, (-1, 4)) != 0).sum(dim=-1).max()) == 2


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("name", [name for name in TWO if name.startswith("half")])
def test_every_layout_chooses_the_same_weights(
    alone: dict[str, Outcome], together: list[dict[str, Outcome]], name: str
) -> None:
    expected = _pruned(alone["half"])
    found: dict[str, Tensor] = {}
    for of_rank in together:
        found |= _pruned(of_rank[name])
    assert set(found) == set(expected)
    same = sum(int(((found[n] == 0) == (one == 0)).sum()) for n, one in expected.items())
    assert same > 0.995 * sum(one.numel() for one in expected.values())  # sums in another order
    for n, one in found.items():
        assert int((one == 0).sum()) == one.numel() // 2, n


@pytest.mark.slow
@pytest.mark.multiprocess
def test_shards_have_whole_groups_of_four(together: list[dict[str, Outcome]]) -> None:
    for weight in _pruned(together[0]["2:4, zero 1"]).values():
        assert int((weight.unflatten(1, (-1, 4)) != 0).sum(dim=-1).max()) == 2


@pytest.mark.multiprocess
def test_a_lottery_trains_each_round_on_fewer_weights(few: dict[str, Outcome]) -> None:
    outcome = few["lottery"]
    assert len(outcome.losses) == 4 + 2 * (4 - 2)
    for layer, weight in _pruned(outcome).items():
        assert int((weight == 0).sum()) == round(0.75 * weight.numel()), layer


def test_the_share_rises_as_a_cube_and_ends_where_it_is_told() -> None:
    wanted = RecipePruning(share=0.8, begin_step=10, end_step=95, every_steps=20)
    course = [share_at(step, wanted) for step in range(120)]
    assert course[:11] == [0.0] * 11
    assert course[95:] == [1.0] * 25
    assert course == sorted(course)
    assert [step for step in range(120) if chooses_at(step, wanted)] == [10, 30, 50, 70, 90, 95]
    at_once = RecipePruning(share=0.8, begin_step=3, end_step=3)
    assert [share_at(step, at_once) for step in (2, 3)] == [0.0, 1.0]
    assert [step for step in range(300) if chooses_at(step, at_once)] == [3]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"pruning": {"end_step": 3}}, "one of share and pattern"),
        ({"pruning": {"share": 0.5, "pattern": [2, 4], "end_step": 3}}, "one of share and pattern"),
        ({"pruning": {"share": 1.5, "end_step": 3}}, "between 0 and 1"),
        ({"pruning": {"share": 0.5, "end_step": 6}}, "the run has 6 steps"),
        ({"pruning": {"share": 0.5, "begin_step": 4, "end_step": 3}}, "not be after end_step"),
        ({"pruning": HALF, "adapter": {}}, "freezes"),
        ({"pruning": HALF, "kind": "mixtral"}, "experts"),
        ({"pruning": HALF, "communication": {"sync_every": 4}}, "sync_every 4"),
        (
            {"pruning": HALF, "lottery": {"share": 0.5, "rounds": 1}},
            "leave one out",
        ),
        ({"lottery": {"share": 0.5, "rounds": 0}}, "rounds 0"),
        ({"lottery": {"share": 0.5, "rounds": 1, "rewind_step": 6}}, "outside of the 6 steps"),
        (
            {"lottery": {"share": 0.5, "rounds": 1}, "survive": {"spike_deviations": 6.0}},
            "jumps",
        ),
    ],
)
def test_what_cannot_be_pruned_is_refused_before_anything_starts(
    tmp_path: Path, tables: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check(small_run(tmp_path, **tables))


def test_a_lottery_counts_the_steps_of_its_rounds(tmp_path: Path) -> None:
    lottery = {"share": 0.5, "rounds": 3, "rewind_step": 2}
    recipe: Recipe = small_run(tmp_path, lottery=lottery)
    assert (recipe.course_steps, recipe.steps) == (6, 6 + 3 * 4)


def test_a_pattern_that_a_layer_cannot_have_names_the_layer() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from ridgeline.train.pruning import Masks

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=16, hidden_size=8, intermediate_size=10, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2,
        )
    )  # fmt: skip
    with pytest.raises(InputError, match=r"down_proj\.weight: 2:4"):
        Masks([model]).check_pattern(2, 4)


def test_masks_leave_gradients_of_what_went_out() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from ridgeline.train.pruning import Masks

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=16, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2,
        )
    )  # fmt: skip
    masks = Masks([model])
    masks.choose(0.5)
    tokens = torch.randint(0, 16, (2, 8))
    model(tokens, labels=tokens).loss.backward()
    masks.apply_to_gradients()
    weight = model.model.layers[0].mlp.up_proj.weight
    assert weight.grad is not None
    assert bool((weight.grad[weight == 0] == 0).all())
    assert bool((weight.grad[weight != 0] != 0).any())
