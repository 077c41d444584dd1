"""Intervals, bootstrap and steadiness, against published values, by simulation and by property."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeline.measure.statistics.intervals import bootstrap_ratio, is_steady, ratio_interval

Array = NDArray[np.float64]
step_times = st.floats(min_value=1e-5, max_value=1e3, allow_nan=False)
seeds = st.integers(min_value=0, max_value=2**32 - 1)


def heavy_tailed(generator: np.random.Generator, count: int) -> Array:
    """Log-normal step times with a spike on about one step in twenty."""
    steps = np.exp(0.1 * generator.normal(size=count))
    spikes = np.where(generator.random(count) < 0.05, generator.uniform(2, 10, size=count), 1.0)
    return np.asarray(steps * spikes)


def correlated(generator: np.random.Generator, count: int) -> Array:
    """Step times of which each resembles the one before it (correlation one half)."""
    noise = generator.normal(size=count)
    for index in range(1, count):
        noise[index] = 0.5 * noise[index - 1] + math.sqrt(0.75) * noise[index]
    return np.exp(0.1 * noise)


# Interleaved rounds


def test_the_interval_is_the_textbook_one_for_ten_rounds() -> None:
    # P(T <= 8) = 0.0244 and P(T <= 9) = 0.0322 for n = 10: the bounds are the ninth Walsh
    # averages from either end.
    logs = np.array([0.11, 0.32, -0.05, 0.27, 0.4, 0.18, 0.09, 0.55, 0.02, 0.21])
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(10) for j in range(i, 10))
    interval = ratio_interval(np.exp(logs).tolist(), [1.0] * 10)
    assert interval.low == pytest.approx(math.exp(walsh[8]))
    assert interval.high == pytest.approx(math.exp(walsh[-9]))
    assert interval.ratio == pytest.approx(math.exp(float(np.median(walsh))))


def test_fewer_than_six_rounds_bound_nothing_at_95_percent() -> None:
    five = ratio_interval([2.0] * 5, [1.0] * 5)
    six = ratio_interval([2.0] * 6, [1.0] * 6)
    assert (five.ratio, five.low, five.high) == (2.0, 0.0, math.inf)
    assert (six.low, six.high) == (2.0, 2.0)


def test_a_lower_confidence_needs_fewer_rounds() -> None:
    assert ratio_interval([2.0] * 5, [1.0] * 5, confidence=0.9).low == 2.0


def test_the_exact_and_the_normal_interval_meet_where_one_takes_over() -> None:
    generator = np.random.default_rng(5)
    logs = generator.normal(0.2, 0.1, size=51)
    exact = ratio_interval(np.exp(logs[:50]).tolist(), [1.0] * 50)
    normal = ratio_interval(np.exp(logs).tolist(), [1.0] * 51)
    assert normal.low == pytest.approx(exact.low, rel=0.01)
    assert normal.high == pytest.approx(exact.high, rel=0.01)


def test_a_burst_on_the_machine_in_one_round_in_five_does_not_move_the_estimate() -> None:
    baseline = [1.3, 1.31, 1.29, 1.3, 9.0] * 4
    assert ratio_interval(baseline, [1.0] * 20).ratio == pytest.approx(1.3, rel=0.02)


@given(st.lists(st.tuples(step_times, step_times), min_size=1, max_size=40))
def test_swapping_the_sides_inverts_the_interval(rounds: list[tuple[float, float]]) -> None:
    there = ratio_interval([a for a, _ in rounds], [b for _, b in rounds])
    back = ratio_interval([b for _, b in rounds], [a for a, _ in rounds])
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.low == pytest.approx(1 / back.high)
    assert there.high == pytest.approx(1 / back.low if back.low else math.inf)
    assert there.low <= there.ratio * (1 + 1e-9)
    assert there.ratio <= there.high * (1 + 1e-9)


@given(st.lists(step_times, min_size=6, max_size=30), st.floats(0.1, 10.0))
def test_a_candidate_that_is_exactly_k_times_faster_is_found_to_be(
    rounds: list[float], speedup: float
) -> None:
    interval = ratio_interval(rounds, [seconds / speedup for seconds in rounds])
    assert (interval.low, interval.ratio, interval.high) == pytest.approx((speedup,) * 3)


def test_the_interval_covers_the_truth_at_its_nominal_rate_under_heavy_tails() -> None:
    generator = np.random.default_rng(20)
    for rounds in (6, 12, 30, 60):
        covered = 0
        for _ in range(300):
            baseline = 1.3 * heavy_tailed(generator, rounds)
            interval = ratio_interval(baseline.tolist(), heavy_tailed(generator, rounds).tolist())
            covered += interval.low <= 1.3 <= interval.high
        assert 0.92 <= covered / 300 <= 0.995, rounds


@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [([1.0], [1.0, 2.0]), ([], []), ([1.0], [0.0]), ([1.0], [math.nan]), ([-1.0], [1.0])],
)
def test_what_is_no_pair_of_times_is_refused(baseline: list[float], candidate: list[float]) -> None:
    with pytest.raises(ValueError, match=r"pairs|time"):
        ratio_interval(baseline, candidate)


# Separate runs


@pytest.mark.slow
@pytest.mark.parametrize("noise", [heavy_tailed, correlated])
def test_the_bootstrap_covers_the_truth_at_about_its_nominal_rate(
    noise: Callable[[np.random.Generator, int], Array],
) -> None:
    generator = np.random.default_rng(21)
    for count in (20, 80):
        covered = 0
        for seed in range(100):
            slow, fast = 1.3 * noise(generator, count), noise(generator, count)
            interval = bootstrap_ratio(slow.tolist(), fast.tolist(), seed=seed)
            covered += interval.low <= 1.3 <= interval.high
        assert covered >= 89, count


def test_the_bootstrap_of_the_mean_sees_the_spikes_that_the_median_ignores() -> None:
    generator = np.random.default_rng(22)
    quiet = np.exp(0.02 * generator.normal(size=120))
    spiky = np.exp(0.02 * generator.normal(size=120))
    spiky[::8] *= 6.0
    median = bootstrap_ratio(spiky.tolist(), quiet.tolist())
    mean = bootstrap_ratio(spiky.tolist(), quiet.tolist(), statistic="mean")
    assert median.low < 1.02
    assert mean.low > 1.3


def test_a_slow_stretch_widens_the_interval_more_than_the_same_steps_scattered() -> None:
    generator = np.random.default_rng(23)
    scattered = np.exp(0.02 * generator.normal(size=90))
    scattered[generator.random(90) < 0.45] *= 1.5
    stretch = np.sort(scattered)
    reference = np.ones(90).tolist()
    apart = bootstrap_ratio(scattered.tolist(), reference)
    together = bootstrap_ratio(stretch.tolist(), reference)
    assert together.high / together.low > apart.high / apart.low


def test_the_bootstrap_gives_the_same_answer_each_time() -> None:
    generator = np.random.default_rng(24)
    first, second = heavy_tailed(generator, 50).tolist(), heavy_tailed(generator, 50).tolist()
    assert bootstrap_ratio(first, second, seed=3) == bootstrap_ratio(first, second, seed=3)
    assert bootstrap_ratio(first, second, seed=3) != bootstrap_ratio(first, second, seed=4)


def test_a_handful_of_samples_bounds_nothing() -> None:
    interval = bootstrap_ratio([2.0] * 5, [1.0] * 100)
    assert (interval.ratio, interval.low, interval.high) == (2.0, 0.0, math.inf)


# Steadiness


@given(seeds, st.floats(min_value=0.0, max_value=0.3))
@settings(max_examples=200)
def test_independent_noise_is_steady_within_forty_steps(seed: int, spread: float) -> None:
    steps = np.exp(spread * np.random.default_rng(seed).normal(size=40)).tolist()
    assert any(is_steady(steps[:count]) for count in range(1, 41))


@given(seeds, st.floats(min_value=0.01, max_value=0.1), st.booleans())
def test_a_ramp_is_never_steady_as_a_whole(seed: int, slope: float, up: bool) -> None:
    noise = 0.2 * slope * np.random.default_rng(seed).normal(size=60)
    steps = np.exp((slope if up else -slope) * np.arange(60) + noise).tolist()
    assert not is_steady(steps)


@given(seeds, st.integers(min_value=5, max_value=60), st.integers(min_value=0, max_value=59))
@settings(max_examples=50)
def test_periodic_evaluation_does_not_prevent_steadiness(seed: int, every: int, first: int) -> None:
    steps = np.exp(0.01 * np.random.default_rng(seed).normal(size=120))
    steps[first % every :: every] *= 20.0
    assert is_steady(steps.tolist())


def test_strictly_alternating_steps_are_steady() -> None:
    assert is_steady([1.0, 2.0] * 30)


def test_too_few_steps_are_not_called_steady() -> None:
    assert not is_steady([])
    assert not is_steady([1.0] * 9)
    assert is_steady([1.0] * 10)
