"""Durations and rates as people write them."""

from __future__ import annotations

import pytest

from ridgeline.errors import InputError
from ridgeline.records.durations import parse_duration, parse_rate


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("33ms", 0.033), ("33 ms", 0.033), ("150us", 150e-6), ("150µs", 150e-6), ("0.5", 0.5),
     ("1m30s", 90.0), ("2d", 172_800.0), (0.033, 0.033), (2, 2.0)],
)  # fmt: skip
def test_durations_are_read(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "hertz"), [("30Hz", 30.0), ("30 hz", 30.0), ("29.97fps", 29.97), ("1kHz", 1e3), (5, 5)]
)
def test_rates_are_read(text: str | float, hertz: float) -> None:
    assert parse_rate(text) == hertz


@pytest.mark.parametrize("text", ["", "soon", "33 parsecs", "nan", "inf", "5ms later", None])
def test_what_is_no_duration_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InputError, match=r"stage plan: budget: .* is no duration; write 33ms"):
        parse_duration(text, "stage plan: budget")


@pytest.mark.parametrize("text", ["", "often", "0", "-5Hz", "nan", "inf", "30s", 0])
def test_what_is_no_rate_is_refused(text: str | float) -> None:
    with pytest.raises(InputError, match="is no rate; write 30Hz"):
        parse_rate(text)
