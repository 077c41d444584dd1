"""Answers as people type them are read as the numbers that they mean."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.drills.grading import EXAMPLES, UNITS, read_option, read_quantity
from ridgeline.drills.questions import written
from ridgeline.errors import InputError


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("312 GB", "bytes", 312e9),
        ("0.29TiB", "bytes", 0.29 * 2**40),
        ("1,420", "count", 1420),
        ("41%", "share", 0.41),
        ("41", "share", 0.41),
        ("0.41", "share", 0.41),
        ("1.7 ms", "seconds", 1.7e-3),
        ("4.8 days", "seconds", 4.8 * 86400),
        ("2e13", "flops", 2e13),
        ("20 TFLOP/s", "flops_per_second", 20e12),
        ("$16.3k", "usd", 16300),
        ("1290 kWh", "joules", 1290 * 3.6e6),
        ("2.8x", "ratio", 2.8),
        ("−3 ms", "seconds", -3e-3),
        (".5 MB", "bytes", 5e5),
    ],
)
def test_an_answer_is_read_in_the_unit_that_was_typed(text: str, unit: str, value: float) -> None:
    assert read_quantity(text, unit) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "unit", "said"),
    [
        ("3 ms", "bytes", "ms does not measure bytes; write 312 GB"),
        ("3 GB", "seconds", "GB does not measure time"),
        ("", "bytes", "is no number"),
        ("nan", "share", "is no number"),
        ("1e999", "count", "past all bounds"),
        ("1,42", "count", "is no number|does not measure"),
        ("e", "count", "is no number"),
        ("1.2.3", "count", "is no number|does not measure"),
    ],
)
def test_what_cannot_be_read_is_told_with_an_example(text: str, unit: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_quantity(text, unit)


@given(st.sampled_from(sorted(UNITS)), st.floats(1e5, 1e15))
def test_an_answer_as_the_solution_writes_it_is_read_again(unit: str, value: float) -> None:
    value = value / 1e15 if unit == "share" else value
    assert read_quantity(written(unit, value), unit) == pytest.approx(value, rel=6e-3, abs=6e-4)


@given(st.text(max_size=200), st.sampled_from(sorted(UNITS)))
def test_whatever_is_typed_is_a_number_or_one_line(text: str, unit: str) -> None:
    try:
        value = read_quantity(text, unit)
    except InputError as error:
        said = str(error)
    else:
        said = EXAMPLES[unit] if math.isfinite(value) else ""
    assert EXAMPLES[unit] in said


def test_an_option_is_its_letter_its_number_or_its_words() -> None:
    options = ["compute", "memory"]
    assert {read_option(text, options) for text in ("b", "B)", "2", "Memory")} == {1}
    for text in ("c", "0", "3", "", "compute and memory"):
        with pytest.raises(InputError, match="is no option; write one of a, b"):
            read_option(text, options)
