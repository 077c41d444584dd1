"""How often is a comparison wrong that stops as soon as it likes what it sees?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeline.measure.statistics.sequential import (
    LOOKS,
    MOST_ROUNDS,
    TOTAL_ERROR,
    interval_of,
    side_by_side,
)

Noise = Callable[[np.random.Generator], NDArray[np.float64]]
RUNS = 400
THRESHOLD = 0.01


def spiky(generator: np.random.Generator) -> NDArray[np.float64]:
    hit = generator.random(MOST_ROUNDS) < 0.1
    return np.where(hit, generator.choice([-0.5, 0.5], MOST_ROUNDS), 0.0) + generator.normal(
        0, 0.02, MOST_ROUNDS
    )


NOISES: dict[str, Noise] = {
    "normal": lambda generator: generator.normal(0, 0.03, MOST_ROUNDS),
    "heavy tails": lambda generator: 0.02 * generator.standard_t(2, MOST_ROUNDS),
    "flat": lambda generator: generator.uniform(-0.05, 0.05, MOST_ROUNDS),
    "two levels": lambda generator: (
        generator.choice([-0.03, 0.03], MOST_ROUNDS) + generator.normal(0, 0.004, MOST_ROUNDS)
    ),
    "a busy neighbour": spiky,
}


def ends(noise: Noise, ratio: float) -> tuple[float, float]:
    """Share of comparisons that keep the candidate, and mean rounds, stopping when decided."""
    generator, kept, rounds = np.random.default_rng(20261122), 0, 0
    for _ in range(RUNS):
        b = np.ones(MOST_ROUNDS)
        a = ratio * np.exp(noise(generator))
        for look in LOOKS:
            interval = interval_of(a[:look].tolist(), b[:look].tolist())
            if interval.low > 1 + THRESHOLD or interval.high < 1 + THRESHOLD:
                break
        kept += interval.low > 1 + THRESHOLD
        rounds += look
    return kept / RUNS, rounds / RUNS


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("noise", NOISES)
def test_what_gains_nothing_worth_keeping_is_rarely_kept(noise: str) -> None:
    kept, _ = ends(NOISES[noise], 1 + THRESHOLD)
    assert kept <= TOTAL_ERROR


@pytest.mark.parametrize("noise", NOISES)
def test_a_gain_of_two_is_decided_after_a_few_rounds(noise: str) -> None:
    kept, rounds = ends(NOISES[noise], 2.0)
    assert kept == 1.0
    assert rounds < 4


def test_a_small_gain_is_found_with_more_rounds() -> None:
    kept, rounds = ends(NOISES["normal"], 1.04)
    assert kept > 0.9
    assert rounds > 8


def test_two_rounds_prove_nothing() -> None:
    interval = interval_of([2.0, 2.0], [1.0, 1.0])
    assert (interval.low, interval.high) == (0.0, float("inf"))


def test_rounds_after_the_last_look_do_not_count() -> None:
    a, b = [2.0, 2.02, 1.99, 9.0], [1.0, 1.0, 1.0, 1.0]
    assert interval_of(a, b) == interval_of(a[:3], b[:3])


def test_the_two_sides_divide_to_the_ratio() -> None:
    a, b = [2.0, 2.4, 1.9, 2.1, 5.0], [1.0, 1.1, 1.3, 1.0, 1.0]
    ratio = interval_of(a, b).ratio
    before, after = side_by_side(a, b, ratio)
    assert before / after == pytest.approx(ratio)
    assert min(a) < before < max(a)


def test_all_looks_share_one_error_of_five_percent() -> None:
    assert pytest.approx(0.05) == TOTAL_ERROR
