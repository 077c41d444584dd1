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


@pytest.mark.sweep("bit-equal", "rounding")
@pytest.mark.parametrize("equivalence", ["bit-equal", "rounding", "statistical"])
def test_equal_losses_pass_every_equivalence(equivalence: str) -> None:
    check = check_losses(equivalence, CURVE, list(CURVE))
    assert check.passed
    assert check.max_abs_difference == 0
    assert "bit-equal" in check.summary


def test_one_different_bit_breaks_a_bit_equality() -> None:
    other = list(CURVE)
    other[5] = math.nextafter(other[5], 9)
    check = check_losses("bit-equal", CURVE, other, seeds=SEEDS)
    assert not check.passed
    assert "step 5" in check.summary


def test_a_script_that_does_not_repeat_itself_is_not_asked_for_equal_bits() -> None:
    noisy = [x + e for x, e in zip(CURVE, RNG.normal(0, 0.01, 40), strict=True)]
    repeat = [x + e for x, e in zip(CURVE, RNG.normal(0, 0.01, 40), strict=True)]
    assert check_losses("bit-equal", CURVE, noisy, seeds=SEEDS, repeat=repeat).passed


def grown(by: float) -> list[float]:
    """Parted a little more with every step, as chaos does."""
    return [x * (1 + by * 1.3**t) for t, x in enumerate(CURVE)]


@given(st.floats(0.0, 3.0))
def test_a_difference_may_grow_as_that_of_the_disturbed_script_does(times: float) -> None:
    assert check_losses("rounding", CURVE, grown(times * 1e-6), shaken=grown(1e-6)).passed


@given(st.floats(20.0, 1e6), st.integers(0, 36))
def test_a_jump_beyond_what_rounding_does_by_then_is_rejected(times: float, step: int) -> None:
    reach = abs(grown(1e-6)[min(step + 24, 39)] - CURVE[min(step + 24, 39)]) + 1e-6
    check = check_losses("rounding", CURVE, moved(times * reach, step), shaken=grown(1e-6))
    assert not check.passed
    assert "times what rounding does" in check.summary


def test_the_steps_that_part_are_named() -> None:
    check = check_losses("rounding", CURVE, moved(0.05, 10), shaken=grown(1e-7))
    assert "losses of steps 8 to 15 part by" in check.summary


def test_a_difference_that_nothing_could_be_compared_with_is_not_verified() -> None:
    check = check_losses("rounding", CURVE, moved(0.001), shaken=[])
    assert not check.passed
    assert "could not be made" in check.summary


def test_a_loss_that_is_suddenly_rounded_to_sixteen_bits_is_rejected() -> None:
    short = [float(np.float16(x)) for x in CURVE]
    check = check_losses("reduced-precision", CURVE, short, shaken=moved(0.01))
    assert not check.passed
    assert "16 bits" in check.summary
    assert check_losses("reduced-precision", short, short[::-1][::-1]).passed


def test_what_two_equal_runs_differ_by_is_allowed_on_top() -> None:
    noisy = [x + e for x, e in zip(CURVE, RNG.normal(0, 0.01, 40), strict=True)]
    repeat = [x + e for x, e in zip(CURVE, RNG.normal(0, 0.01, 40), strict=True)]
    assert check_losses("rounding", CURVE, noisy, shaken=CURVE, repeat=repeat).passed


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
