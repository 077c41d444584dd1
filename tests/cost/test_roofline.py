"""The roofline and Amdahl's law, on numbers that can be checked by hand and on any others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost import amdahl, roofline

SIZES = st.floats(min_value=1e-3, max_value=1e15)
SHARES = st.floats(min_value=0.0, max_value=1.0)


def test_the_ridge_is_where_both_limits_meet() -> None:
    ridge = roofline.ridge_point(312e12, 2.04e12)
    assert roofline.attainable_flops_per_second(ridge, 312e12, 2.04e12) == pytest.approx(312e12)
    assert ridge == pytest.approx(152.9, abs=0.1)


@given(flops=SIZES, moved=SIZES, peak=SIZES, bandwidth=SIZES)
def test_the_least_time_is_what_the_attainable_rate_takes(
    flops: float, moved: float, peak: float, bandwidth: float
) -> None:
    rate = roofline.attainable_flops_per_second(flops / moved, peak, bandwidth)
    seconds = roofline.least_seconds(flops, moved, peak, bandwidth)
    assert seconds == pytest.approx(flops / rate, rel=1e-6)


@given(flops=SIZES, moved=SIZES, peak=SIZES, bandwidth=SIZES)
def test_the_bound_names_the_larger_of_the_two_times(
    flops: float, moved: float, peak: float, bandwidth: float
) -> None:
    compute, memory = flops / peak, moved / bandwidth
    if math.isclose(compute, memory, rel_tol=1e-6):
        return
    expected = "compute" if compute > memory else "memory"
    assert roofline.bound(flops, moved, peak, bandwidth) == expected


def test_what_does_no_arithmetic_is_bound_by_memory() -> None:
    assert roofline.bound(0.0, 1e6, 1e12, 1e9) == "memory"
    assert roofline.least_seconds(0.0, 1e9, None, 1e9) == 1.0


@given(share=SHARES, factor=st.floats(min_value=1.0, max_value=1e6))
def test_a_part_never_speeds_up_the_whole_by_more_than_its_share_allows(
    share: float, factor: float
) -> None:
    whole = amdahl.speedup(share, factor)
    assert 1.0 <= whole <= factor * (1 + 1e-9)
    assert whole <= amdahl.speedup(share, math.inf) * (1 + 1e-9)


@pytest.mark.parametrize(("share", "factor"), [(-0.1, 2.0), (1.1, 2.0), (0.5, 0.0)])
def test_shares_and_factors_that_cannot_be_are_refused(share: float, factor: float) -> None:
    with pytest.raises(ValueError):
        amdahl.speedup(share, factor)


def test_saving_a_quarter_of_a_step_is_a_third_faster() -> None:
    assert amdahl.speedup_without(0.25, 1.0) == pytest.approx(4 / 3)
    assert amdahl.speedup_without(5.0, 1.0) == math.inf
