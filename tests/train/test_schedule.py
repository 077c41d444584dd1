"""The course of the learning rate, for any recipe."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe, RecipeData, RecipeModel, RecipeOptimizer
from ridgeline.train.schedule import learning_rate, peak_learning_rate, set_learning_rate

PEAK, END = 0.5, 0.05
COURSES = ("cosine", "linear", "wsd", "constant")


def recipe_of(batch: int = 1, **optimizer: Any) -> Recipe:
    return Recipe(
        model=RecipeModel(config="none"),
        data=RecipeData(seq=8),
        layout=Layout(global_batch=batch),
        optimizer=RecipeOptimizer(learning_rate=PEAK, final_learning_rate=END, **optimizer),
    )


runs = st.tuples(st.sampled_from(COURSES), st.integers(3, 400), st.floats(0, 0.9), st.floats(0, 1))


def course(run: tuple[str, int, float, float]) -> tuple[list[float], int]:
    schedule, steps, warm, share = run
    warmup = int(warm * steps)
    recipe = recipe_of(schedule=schedule, warmup_steps=warmup, decay_share=share)
    return [learning_rate(step, steps, recipe) for step in range(steps)], warmup


@given(runs)
def test_the_warm_up_is_a_straight_line_to_the_peak(run: tuple[str, int, float, float]) -> None:
    rates, warmup = course(run)
    for step in range(warmup):
        assert rates[step] == pytest.approx(PEAK * (step + 1) / warmup)


@given(runs)
def test_the_last_step_has_the_final_rate_and_none_leaves_its_bounds(
    run: tuple[str, int, float, float],
) -> None:
    rates, warmup = course(run)
    assert rates[-1] == pytest.approx(PEAK if run[0] == "constant" else END)
    assert all(0.0 < rate <= PEAK * (1 + 1e-9) for rate in rates)
    after = rates[warmup:]
    assert all(b <= a * (1 + 1e-9) for a, b in pairwise(after))


@given(st.sampled_from(["cosine", "linear"]), st.integers(20, 2000))
def test_no_step_after_the_warm_up_jumps(schedule: str, steps: int) -> None:
    rates, warmup = course((schedule, steps, 0.2, 0.0))
    # The steepest course is the cosine at its middle: π/2 times the straight line.
    steepest = 1.6 * (PEAK - END) / (steps - 1 - warmup)
    assert all(
        abs(b - a) <= steepest for a, b in zip(rates[warmup:], rates[warmup + 1 :], strict=False)
    )


def test_wsd_stays_at_the_peak_until_the_last_share() -> None:
    recipe = recipe_of(schedule="wsd", warmup_steps=10, decay_share=0.2)
    rates = [learning_rate(step, 100, recipe) for step in range(100)]
    assert rates[9:80] == [PEAK] * 71
    assert rates[89] == pytest.approx((PEAK + END) / 2)


def test_the_middle_of_the_cosine_is_half_way() -> None:
    assert learning_rate(50, 101, recipe_of(warmup_steps=0)) == pytest.approx((PEAK + END) / 2)


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_a_batch_four_times_the_reference_scales_the_whole_course(rule: str, factor: int) -> None:
    recipe = recipe_of(batch=64, batch_scaling=rule, reference_batch=16, warmup_steps=0)
    assert peak_learning_rate(recipe) == pytest.approx(factor * PEAK)
    assert learning_rate(0, 10, recipe) == pytest.approx(factor * PEAK)
    assert learning_rate(9, 10, recipe) == pytest.approx(factor * END)


def test_scaling_without_a_reference_names_the_missing_key() -> None:
    with pytest.raises(InputError, match=r"needs optimizer\.reference_batch"):
        peak_learning_rate(recipe_of(batch_scaling="sqrt"))


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    with pytest.raises(InputError, match="the run has 100 steps"):
        learning_rate(0, 100, recipe_of(warmup_steps=100))


def test_groups_keep_their_share_of_the_rate() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    other = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD(
        [{"params": [weight], "rate_share": 0.1}, {"params": [other]}], lr=1.0
    )
    set_learning_rate(optimizer, 0.3)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.03, 0.3])
