"""What a number format can tell apart, and what rounding to so many bits costs on average.

    epsilon       2^−p for p bits of mantissa: from 1 to the next number    IEEE 754-2019, 3.3
    a step Δ      largest error Δ/2, mean |error| Δ/4, root mean square Δ/√12

The errors are those of numbers that lie anywhere between two levels alike. Integers that are
rounded with one scale for all have levels largest / (2^(b−1) − 1) apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.cost.number_line import FORMATS


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatLimits:
    """The range and the precision of one number format."""

    format: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    epsilon: float | None
    """The distance from 1 to the next number; None: integers have no such."""
    largest: float
    smallest_normal: float | None
    decimal_digits: float | None
    """How many decimal digits survive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatTable:
    """Every number format, widest first."""

    formats: tuple[FormatLimits, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingError:
    """What rounding to the levels of an integer does to numbers up to `largest`."""

    step: float
    largest_error: float
    mean_error: float
    """The mean of the errors' magnitudes."""
    rms_error: float


def format_limits(name: str) -> FormatLimits:
    """The range and the precision of a number format: its epsilon, largest and smallest numbers.

    >>> format_limits("bf16").epsilon, format_limits("fp16").largest
    (0.0078125, 65504.0)
    """
    if name not in FORMATS:
        raise ValueError(f"no number format {name!r}; known: {', '.join(FORMATS)}")
    form = FORMATS[name]
    floating = form.exponent_bits > 0
    return FormatLimits(
        format=name,
        bits=form.bits,
        exponent_bits=form.exponent_bits,
        mantissa_bits=form.mantissa_bits,
        epsilon=2.0**-form.mantissa_bits if floating else None,
        largest=form.largest if floating else float(math.floor(form.largest)),
        smallest_normal=2.0**form.least_exponent if floating else None,
        decimal_digits=(form.mantissa_bits + 1) * math.log10(2.0) if floating else None,
    )


def format_table(names: Sequence[str]) -> FormatTable:
    """The epsilon, the range and the digits of number formats in one table.

    >>> [one.format for one in format_table(["fp32", "tf32", "bf16"]).formats]
    ['fp32', 'tf32', 'bf16']
    """
    return FormatTable(formats=tuple(format_limits(name) for name in names))


def rounding_error(largest: float, bits: int) -> RoundingError:
    """The errors of symmetric integers of so many bits over numbers up to `largest`.

    >>> round(rounding_error(3.8, 8).mean_error, 4)
    0.0075
    """
    if largest <= 0.0 or not 2 <= bits <= 32:
        raise ValueError("largest is above 0, and bits are 2 to 32")
    step = largest / (2.0 ** (bits - 1) - 1.0)
    return RoundingError(
        step=step,
        largest_error=step / 2.0,
        mean_error=step / 4.0,
        rms_error=step / math.sqrt(12.0),
    )
