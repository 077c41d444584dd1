"""The numbers that a format of few bits can hold: its range, its spacing, and what rounding does.

    float, p bits of mantissa   step at x = 2^(max(⌊log2 |x|⌋, e_min) − p)   IEEE 754-2019, 3.3
    block with a scale          x ≈ code · scale, scale from the block's largest magnitude
    nearest, ties to even       |error| ≤ step / 2                           IEEE 754-2019, 4.3.1
    stochastic                  up with probability (x − below) / step, so that the mean is x
                                (Gupta et al., 1502.02551, section 3)

Formats of 8 bits are those of OFP8 1.0, with saturation; MX blocks of 32 have a power of two as
their scale (OCP MX 1.0, section 6.3), NVFP4 blocks of 16 an E4M3 number, integers the step that
uses their whole range. `kernels/number_formats/` rounds tensors by the same rules, and a test holds
the two together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Overflow = Literal["infinity", "saturates"]
Scaling = Literal["none", "power of two", "largest"]
MOST_VALUES = 400
"""Values of one format in a window that are listed; where there are more, none are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberSpacing:
    """A number format; an integer has no exponent."""

    bits: int
    exponent_bits: int
    mantissa_bits: int
    largest: float
    """The largest finite number, before any scale."""
    overflow: Overflow
    scaling: Scaling = "none"
    block: int | None = None
    """Numbers that share a scale; None: none, or a whole row."""

    @property
    def least_exponent(self) -> int:
        """The exponent of the smallest normal number; of an integer that of its step."""
        if not self.exponent_bits:
            return 0
        return 2 - (1 << (self.exponent_bits - 1))


def _float(bits: int, exponent: int, mantissa: int) -> NumberSpacing:
    largest = (2.0 - 2.0**-mantissa) * 2.0 ** (2 ** (exponent - 1) - 1)
    return NumberSpacing(
        bits=bits,
        exponent_bits=exponent,
        mantissa_bits=mantissa,
        largest=largest,
        overflow="infinity",
    )


def _small(
    bits: int, exponent: int, mantissa: int, largest: float, scaling: Scaling, block: int | None
) -> NumberSpacing:
    return NumberSpacing(
        bits=bits,
        exponent_bits=exponent,
        mantissa_bits=mantissa,
        largest=largest,
        overflow="saturates",
        scaling=scaling,
        block=block,
    )


FORMATS: dict[str, NumberSpacing] = {
    "fp32": _float(32, 8, 23),
    "tf32": _float(19, 8, 10),
    "bf16": _float(16, 8, 7),
    "fp16": _float(16, 5, 10),
    "fp8-e5m2": _small(8, 5, 2, 57344.0, "none", None),
    "fp8-e4m3": _small(8, 4, 3, 448.0, "none", None),
    "mxfp8": _small(8, 4, 3, 448.0, "power of two", 32),
    "mxfp4": _small(4, 2, 1, 6.0, "power of two", 32),
    "nvfp4": _small(4, 2, 1, 6.0, "largest", 16),
    "int8": _small(8, 0, 0, 127.5, "largest", None),
    "int4": _small(4, 0, 0, 7.5, "largest", None),
}
"""The formats by name. Of integers `largest` is the middle of both ends, −128 and 127."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundedNumber:
    """One format, and what becomes of one value in it."""

    format: str
    bits: int
    scale: float
    """What a code is multiplied with; 1 where the format has no scale."""
    largest: float
    """The largest number, with the scale."""
    smallest_normal: float
    smallest: float
    """The smallest number above 0."""
    decades: float
    """Powers of ten between the smallest and the largest."""
    rounded: float | None
    """The nearest number, ties to even; None: infinity."""
    overflows: bool
    """Beyond the largest number: cut to it, or infinity."""
    relative_error: float | None
    step: float
    """Between neighbours where the value lies."""
    below: float
    above: float | None
    """Neighbours of the value; None: there is none above it but infinity."""
    share_up: float
    """How often stochastic rounding goes up."""
    values: tuple[float, ...]
    """Every number of the window; none where they are too many to be told apart."""
    values_in_window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberLine:
    """One value in several formats."""

    value: float
    block_largest: float
    low: float
    high: float
    formats: tuple[RoundedNumber, ...]


def number_line(
    value: float,
    block_largest: float = 6.0,
    window: float = 2.0,
    formats: Sequence[str] = tuple(FORMATS),
) -> NumberLine:
    """A value as each number format holds it, and their numbers within `window` of it.

    `block_largest` is the largest magnitude among the numbers that share a scale with it.

    >>> [(one.format, one.rounded) for one in number_line(0.3, formats=("bf16", "nvfp4")).formats]
    [('bf16', 0.30078125), ('nvfp4', 0.5)]

    Raises:
        ValueError: There is no such format, or a number is not finite or not above 0.
    """
    for name, number in (("value", value), ("block_largest", block_largest), ("window", window)):
        if not math.isfinite(number) or abs(number) > 1e38:
            raise ValueError(f"{name} is {number:g}; give a number that fp32 can hold")
    if block_largest < 1e-30 or window < 1e-30:
        raise ValueError("block_largest and window must be above 0")
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ValueError(f"no number format {unknown[0]!r}; known: {', '.join(FORMATS)}")
    low, high = value - window, value + window
    found = tuple(_rounded(name, value, block_largest, low, high) for name in formats)
    return NumberLine(value=value, block_largest=block_largest, low=low, high=high, formats=found)


def scale_of(form: NumberSpacing, block_largest: float) -> float:
    """What the codes of a block are multiplied with."""
    if form.scaling == "none":
        return 1.0
    if form.scaling == "power of two":
        reach = math.frexp(form.largest)[1] - math.frexp(block_largest)[1]
        return 2.0**-reach
    return block_largest / form.largest


def step_at(form: NumberSpacing, code: float) -> float:
    """The distance between neighbours of the unscaled format at a magnitude."""
    if not form.exponent_bits:
        return 1.0
    exponent = math.frexp(code)[1] - 1 if code else form.least_exponent
    top = math.frexp(form.largest)[1] - 1
    return 2.0 ** (min(max(exponent, form.least_exponent), top) - form.mantissa_bits)


def nearest(form: NumberSpacing, code: float) -> float:
    """The nearest number of the unscaled format, ties to even, saturated."""
    low, high = _ends(form)
    step = step_at(form, code)
    return min(max(round(code / step) * step, low), high)


def _ends(form: NumberSpacing) -> tuple[float, float]:
    """The least and the largest code."""
    if form.exponent_bits:
        return -form.largest, form.largest
    return -math.ceil(form.largest), math.floor(form.largest)


def _rounded(
    name: str, value: float, block_largest: float, low: float, high: float
) -> RoundedNumber:
    form = FORMATS[name]
    scale = scale_of(form, block_largest)
    least, most = _ends(form)
    code = value / scale
    step = step_at(form, code)
    # Half a step past the largest number rounding still comes back to it.
    beyond = abs(round(code / step) * step) > (most if code > 0 else -least)
    near = nearest(form, code)
    infinite = beyond and form.overflow == "infinity"
    below, above = _neighbours(form, code)
    smallest_step = step_at(form, 0.0)
    values, count = _window(form, low / scale, high / scale, scale)
    normal = 2.0**form.least_exponent if form.exponent_bits else 1.0
    return RoundedNumber(
        format=name,
        bits=form.bits,
        scale=scale,
        largest=most * scale,
        smallest_normal=normal * scale,
        smallest=smallest_step * scale,
        decades=math.log10(most / smallest_step),
        rounded=None if infinite else near * scale,
        overflows=beyond,
        relative_error=None if infinite or not value else abs(near * scale - value) / abs(value),
        step=step * scale,
        below=below * scale,
        above=None if above is None else above * scale,
        share_up=0.0 if above is None or above == below else (code - below) / (above - below),
        values=values,
        values_in_window=count,
    )


def _neighbours(form: NumberSpacing, code: float) -> tuple[float, float | None]:
    """The numbers on either side of a code; both are itself where it is one."""
    least, most = _ends(form)
    if code > most:
        return most, None if form.overflow == "infinity" else most
    if code < least:
        return least, least
    step = step_at(form, code)
    below = math.floor(code / step) * step
    return below, below if below == code else min(below + step, most)


def _window(
    form: NumberSpacing, low: float, high: float, scale: float
) -> tuple[tuple[float, ...], int]:
    """The numbers between two codes, from below, where they can be told apart; and how many."""
    least, most = _ends(form)
    start, end = max(low, least), min(high, most)
    count = _count(form, start, end)
    values: list[float] = []
    if count <= MOST_VALUES:
        place: float | None = _at_or_above(form, start)
        while place is not None and place <= end:
            values.append(place * scale)
            place = _next(form, place)
    return tuple(values), count


def _count(form: NumberSpacing, start: float, end: float) -> int:
    """How many numbers lie between two codes."""
    if start > end:
        return 0
    if not form.exponent_bits:
        return math.floor(end) - math.ceil(start) + 1
    if start < 0.0 <= end:
        return _rank(form, end) + _rank(form, -start) + 1
    if end < 0.0:
        start, end = -end, -start
    exact = nearest(form, start) == start
    return _rank(form, end) - _rank(form, start) + exact


def _rank(form: NumberSpacing, code: float) -> int:
    """How many numbers lie above 0 and at most at a magnitude."""
    step = step_at(form, code)
    exponent = max(math.frexp(code)[1] - 1 if code else form.least_exponent, form.least_exponent)
    below = (exponent - form.least_exponent) << form.mantissa_bits
    return below + math.floor(code / step)


def _at_or_above(form: NumberSpacing, code: float) -> float:
    step = step_at(form, code)
    return math.ceil(code / step) * step


def _next(form: NumberSpacing, code: float) -> float | None:
    """The next larger number; None past the last."""
    step = step_at(form, code)
    if code < 0.0 and form.exponent_bits and math.frexp(code)[0] == -0.5:
        # Towards 0 a power of two has the finer neighbours on its far side.
        step = step_at(form, code / 2.0)
    return code + step if code + step <= _ends(form)[1] else None
