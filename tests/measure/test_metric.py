"""Intervals of percentiles hold the truth, know their limits, and are widened by clusters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ridgeline.measure.statistics.metric import (
    independent_samples,
    metric_slowdown,
    parse_metric,
    samples_needed,
)


def times(generator: np.random.Generator, count: int, scale: float = 1.0) -> list[float]:
    return [float(x) for x in scale * np.exp(0.1 * generator.normal(size=count))]


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(
    ("name", "count", "truth"),
    [("p99", 1000, 1.3), ("p95", 150, 1.3), ("p50", 60, 1.3), ("p99/p50", 1000, 1.0)],
)
def test_at_least_nineteen_in_twenty_intervals_hold_the_truth(
    name: str, count: int, truth: float
) -> None:
    generator = np.random.default_rng(3)
    held = 0
    for _ in range(200):
        found = metric_slowdown(
            parse_metric(name), times(generator, count, 1.3), times(generator, count)
        )
        held += found.low <= truth <= found.high
    assert held >= 190


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.95, 0.99])
def test_as_many_samples_as_are_asked_for_bound_a_percentile_and_one_less_does_not(
    quantile: float,
) -> None:
    needed = samples_needed(quantile)
    metric = parse_metric(f"p{100 * quantile:g}")
    # Whole turns of a slow wave and back: no run of neighbours above any level is long.
    samples = times(np.random.default_rng(0), 4 * needed)[:needed]
    shuffled = [samples[i] for i in np.random.default_rng(1).permutation(needed)]
    if independent_samples(shuffled, quantile) == needed:
        assert math.isfinite(metric_slowdown(metric, shuffled, shuffled).high)
    assert metric_slowdown(metric, shuffled[:-1], shuffled[:-1]).high == math.inf


def test_slow_samples_that_come_together_are_worth_fewer() -> None:
    generator = np.random.default_rng(5)
    scattered = times(generator, 1000)
    together = times(generator, 1000)
    for begin in range(100, 1000, 200):
        together[begin : begin + 10] = [2.0] * 10
    assert independent_samples(scattered, 0.95) > 900
    assert independent_samples(together, 0.95) < 300


def test_a_percentile_of_one_run_is_what_numpy_says() -> None:
    samples = [float(n) for n in range(1, 101)]
    assert parse_metric("p99").of(samples) == pytest.approx(np.quantile(samples, 0.99))
    assert parse_metric("mean").of(samples) == pytest.approx(50.5)
    assert parse_metric("p90/p50").of(samples) == pytest.approx(
        np.quantile(samples, 0.9) / np.quantile(samples, 0.5)
    )
