"""Numbers as people read them: they read back, and no unit is left too early or too late."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline import quantity

FACTORS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


@given(st.floats(min_value=1e-8, max_value=1e6))
def test_a_duration_reads_back_to_three_digits(value: float) -> None:
    number, unit = quantity.seconds(value).split()
    assert float(number) * FACTORS[unit] == pytest.approx(value, rel=0.0051)


@given(st.floats(min_value=1e-9, max_value=3e4))
def test_a_duration_has_three_digits_and_carries_into_the_next_unit(value: float) -> None:
    number, unit = quantity.seconds(value).split()
    assert len(number.replace(".", "").lstrip("0")) == 3
    assert float(number) < (600.0 if unit in ("s", "min") else 1000.0)


@given(st.floats(min_value=1.0, max_value=9e17))
def test_a_size_reads_back_and_carries_into_the_next_unit(value: float) -> None:
    number, unit = quantity.memory(value).split()
    factor = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}[unit]
    assert float(number) < 1000.0
    assert float(number) * factor == pytest.approx(value, rel=0.06 if unit == "B" else 0.0051)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.99996, "1.00 s"),
        (0.9996e-3, "1.00 ms"),
        (999.4e-6, "999 µs"),
        (9.9996, "10.0 s"),
        (599.4, "599 s"),
        (599.6, "9.99 min"),
        (35_990.0, "10.0 h"),
        (-0.99996, "−1.00 s"),
    ],
)
def test_a_duration_at_the_border_of_a_unit(value: float, text: str) -> None:
    assert quantity.seconds(value) == text


@given(st.floats())
def test_every_float_has_a_text(value: float) -> None:
    for show in (
        quantity.digits,
        quantity.seconds,
        quantity.memory,
        quantity.ratio,
        quantity.percent,
        quantity.count,
        quantity.number,
    ):
        assert show(value)


@given(st.sampled_from(sorted(quantity.UNITS)), st.floats(0, 1e15))
def test_a_name_chooses_the_unit_of_its_value(unit: str, value: float) -> None:
    assert quantity.shown(f"some_{unit}", value) == quantity.UNITS[unit](value)
    assert quantity.without_unit(f"some_{unit}") == "some"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.5, 1.6, "[1.50, 1.60]"),
        (1.001, 1.2, "[1.001, 1.200]"),
        (0.5, math.inf, "[0.50, ∞]"),
        (12.0, 14.0, "[12.0, 14.0]"),
        (None, 1.0, "[–, –]"),
        (0.0, 1.3, "[–, 1.30]"),
        (0.0, 9933099.463, "[–, –]"),
    ],
)
def test_an_interval_shows_on_which_side_of_one_it_lies(
    low: float | None, high: float | None, text: str
) -> None:
    assert quantity.interval(low, high) == text
