"""When does a changed run still train the same model?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.tune.losses import check_losses, seed_spread

RNG = np.random.default_rng(7)
CURVE = [3.0 * math.exp(-t / 20) + 1.0 for t in range(40)]
SEEDS = [[x + e for x, e in zip(CURVE, RNG.normal(0, 0.1, 40), strict=True)] for _ in range(2)]


def moved(by: float, start: int = 0) -> list[float]:
    return [x + (by if t >= start else 0.0) for t, x in enumerate(CURVE)]


@pytest.mark.parametrize("promise", ["bit-equal", "rounding", "statistical"])
def test_equal_losses_pass_every_promise(promise: str) -> None:
    check = check_losses(promise, CURVE, list(CURVE))
    assert check.passed
    assert check.max_abs_difference == 0
    assert "bit-equal" in check.summary


def test_one_different_bit_breaks_a_bit_equal_promise() -> None:
    other = list(CURVE)
    other[5] = math.nextafter(other[5], 9)
    check = check_losses("bit-equal", CURVE, other, seeds=SEEDS)
    assert not check.passed
    assert "step 5" in check.summary


def test_a_script_that_does_not_repeat_itself_is_not_asked_for_equal_bits() -> None:
    noisy = [x + e for x, e in zip(CURVE, RNG.normal(0, 0.01, 40), strict=True)]
    repeat = [x + e for x, e in zip(CURVE, RNG.normal(0, 0.01, 40), strict=True)]
    assert check_losses("bit-equal", CURVE, noisy, seeds=SEEDS, repeat=repeat).passed


def test_rounding_may_grow_with_the_steps() -> None:
    grown = [x * (1 + 1e-7 * 1.3**t) for t, x in enumerate(CURVE)]
    assert check_losses("rounding", CURVE, grown, seeds=SEEDS).passed


def test_a_first_loss_that_differs_is_not_rounding() -> None:
    check = check_losses("rounding", CURVE, moved(0.05), seeds=SEEDS)
    assert not check.passed
    assert "more than rounding" in check.summary


def test_differences_within_the_seed_spread_pass_as_statistical() -> None:
    shaken = [x + e for x, e in zip(CURVE, RNG.normal(0, 0.02, 40), strict=True)]
    check = check_losses("statistical", CURVE, shaken, seeds=SEEDS)
    assert check.passed
    assert check.seed_spread == pytest.approx(0.1, rel=0.3)


def test_a_run_that_stops_learning_is_rejected() -> None:
    stuck = [CURVE[0]] * 40
    assert not check_losses("statistical", CURVE, stuck, seeds=SEEDS).passed


def test_a_steady_lean_to_the_worse_side_is_rejected_although_it_is_small() -> None:
    check = check_losses("statistical", CURVE, moved(0.09), seeds=SEEDS)
    assert not check.passed
    assert "lean upward" in check.summary


def test_a_lower_loss_is_no_reason_to_reject() -> None:
    assert check_losses("statistical", CURVE, moved(-0.09), seeds=SEEDS).passed


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_stops_being_finite_is_named_with_its_step(bad: float) -> None:
    other = list(CURVE)
    other[9] = bad
    check = check_losses("statistical", CURVE, other, seeds=SEEDS)
    assert not check.passed
    assert "not finite at step 9" in check.summary


def test_without_losses_nothing_is_verified() -> None:
    assert not check_losses("rounding", [], []).passed


def test_the_spread_is_none_without_other_seeds() -> None:
    assert seed_spread(CURVE, []) is None


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=50), st.floats(1.0, 5.0))
def test_scaling_all_losses_up_beyond_the_spread_never_passes(
    curve: list[float], factor: float
) -> None:
    scaled = [x * (1 + factor) for x in curve]
    near = [[x * 1.001 for x in curve]]
    assert not check_losses("statistical", curve, scaled, seeds=near).passed
