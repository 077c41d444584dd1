"""When requests are sent."""

from __future__ import annotations

from itertools import islice, pairwise
from random import Random

import numpy as np
import pytest

from ridgeline.batching.load.workload import constant, gamma, poisson, ramp


def gaps(times: list[float]) -> np.ndarray:
    return np.diff([0.0, *times])


@pytest.mark.parametrize("variation", [0.5, 1.0, 3.0])
def test_gamma_has_the_rate_and_the_variation_asked_for(variation: float) -> None:
    found = gaps(list(islice(gamma(20.0, variation, Random(1)), 40_000)))
    assert found.mean() == pytest.approx(1 / 20, rel=0.06)
    assert found.std() / found.mean() == pytest.approx(variation, rel=0.06)


def test_poisson_is_gamma_of_variation_one() -> None:
    found = gaps(list(islice(poisson(5.0, Random(2)), 20_000)))
    assert found.std() == pytest.approx(0.2, rel=0.05)


def test_constant_does_not_drift() -> None:
    assert next(islice(constant(3.0), 3_000_000, None)) == 1_000_000.0


@pytest.mark.parametrize(("first", "last"), [(10.0, 90.0), (90.0, 10.0), (50.0, 50.0)])
def test_a_ramp_has_its_rates_at_both_ends(first: float, last: float) -> None:
    times = list(ramp(first, last, 100.0, Random(3)))
    assert all(before <= after for before, after in pairwise(times))
    assert len(times) == pytest.approx(5_000, rel=0.06)
    begin = sum(at < 10 for at in times) / 10
    end = sum(at > 90 for at in times) / 10
    assert begin == pytest.approx(first + (last - first) * 0.05, rel=0.25)
    assert end == pytest.approx(last - (last - first) * 0.05, rel=0.25)
