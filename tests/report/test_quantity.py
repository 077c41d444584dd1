"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.report import quantity

FACTORS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


@given(st.floats(min_value=1e-8, max_value=1e6))
def test_a_duration_reads_back_to_three_digits(value: float) -> None:
    number, unit = quantity.seconds(value).split()
    assert float(number) * FACTORS[unit] == pytest.approx(value, rel=0.006)


@given(st.floats(min_value=1.0, max_value=1e18))
def test_a_size_reads_back_to_three_digits(value: float) -> None:
    number, unit = quantity.memory(value).split()
    factor = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}[unit]
    assert float(number.replace(",", "")) * factor == pytest.approx(
        value, rel=0.06 if unit == "B" else 0.006
    )


@given(st.floats())
def test_every_float_has_a_text(value: float) -> None:
    for show in (
        quantity.digits,
        quantity.seconds,
        quantity.memory,
        quantity.ratio,
        quantity.percent,
        quantity.count,
    ):
        assert show(value)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.5, 1.6, "[1.50, 1.60]"),
        (1.001, 1.2, "[1.001, 1.200]"),
        (0.5, math.inf, "[0.50, ∞]"),
        (12.0, 14.0, "[12.0, 14.0]"),
    ],
)
def test_an_interval_shows_on_which_side_of_one_it_lies(low: float, high: float, text: str) -> None:
    assert quantity.interval(low, high) == text
