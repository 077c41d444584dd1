"""How far a time may be off: from repeats where there are some, else from what recurs in a window.

One window is one sample, but the work in it recurs: the same kernel runs with the same grid many
times, followed by the same next one. The mean of such a group of like spans is what a span costs,
and what is left of each is noise. Noise is correlated in time (clocks, temperature, neighbours), so
neighbouring spans are summed to blocks and the error of the whole is taken from the spread of the
blocks, for many lengths of block; the largest counts (Flyvbjerg and Petersen, "Error estimates on
averages of correlated data", Journal of Chemical Physics 91, 1989). Spans that do not recur are
taken to be as noisy as those that do; where most of the time does not recur, nothing is known.

What changes from one run to the next, and holds for all of a window, no window can show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ridgeline.trace.columns import Floats, Mask

Numbers = npt.NDArray[np.integer[Any]]

FEWEST = 3
"""Repeats below this say nothing about their own spread."""
_RECURRING = 0.5
"""Share of the time that has to recur."""
_STAMP_US = 1 / math.sqrt(12)
"""Standard deviation of a time that is rounded to a microsecond: the least error of a span."""
_BLOCKS = (6, 8, 12, 16, 24, 32, 64)
_DRIFT_BLOCKS = {12: 1.5, 16: 1.5, 32: 1.5}
"""So many blocks, of four spans each at least, show whether they resemble their neighbours: from so
many standard deviations of chance on. In a short window a drift hardly shows, so that a lesser sign
counts."""
_LONG, _DRIFT_BLOCKS_OF_LONG = 256, {32: 2.0}
"""From so many spans on it shows as it is."""
_STRONGEST = 0.97
"""A correlation that leaves next to nothing of the blocks' worth."""
_NORMAL_95 = 1.959964
_STUDENT_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""Two-sided 95 % points of Student's t for 1 … 20 degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeError:
    """The standard error of a time, and how well it is known itself."""

    error_us: float
    freedom: int
    """The degrees of freedom behind it."""

    @property
    def reach_us(self) -> float:
        """Half of the 95 % interval."""
        return student_95(self.freedom) * self.error_us

    def over(self, count: float) -> TimeError:
        """The error of the time divided by a number."""
        return TimeError(error_us=self.error_us / count, freedom=self.freedom)


def student_95(freedom: int) -> float:
    """The two-sided 95 % point of Student's t; past the table by Fisher and Cornish's expansion.

    >>> student_95(2), round(student_95(30), 3)
    (4.303, 2.042)
    """
    if freedom <= len(_STUDENT_95):
        return _STUDENT_95[max(freedom, 1) - 1]
    z = _NORMAL_95
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + (z**3 + z) / (4 * freedom) + second


def error_of_mean(values: Floats) -> TimeError | None:
    """The standard error of the mean of whole repeats in order; None for fewer than three."""
    count = len(values)
    if count < FEWEST:
        return None
    found = _largest_error(values - values.mean())
    error = max(found.error_us / count, _STAMP_US / math.sqrt(count))
    return TimeError(error_us=error, freedom=found.freedom)


def error_of_sum(durations_us: Floats, groups: Sequence[Numbers]) -> TimeError | None:
    """The standard error of the sum of spans in order of time; None where too little recurs.

    `groups` numbers like spans, the finest grouping first; a span is held against the finest group
    of it that has three members.
    """
    known, left = _residuals(durations_us, groups)
    whole, recurring = float(durations_us.sum()), float(durations_us[known].sum())
    if known.sum() < FEWEST or recurring <= 0 or recurring < _RECURRING * whole:
        return None
    found = _largest_error(left[known])
    relative = float((left[known] ** 2).sum()) / float((durations_us[known] ** 2).sum())
    single = relative * float((durations_us[~known] ** 2).sum())
    error = math.hypot(found.error_us, math.sqrt(single))
    least = _STAMP_US * math.sqrt(len(durations_us))
    return TimeError(error_us=max(error, least), freedom=found.freedom)


def _residuals(values: Floats, groups: Sequence[Numbers]) -> tuple[Mask, Floats]:
    """Which values have like ones, and what each differs from the mean of those."""
    known = np.zeros(len(values), bool)
    left = np.zeros(len(values))
    for group in groups:
        open_rows = np.flatnonzero(~known)
        if not len(open_rows):
            break
        numbers = group[open_rows]
        order = np.argsort(numbers, kind="stable")
        heads = np.flatnonzero(np.diff(numbers[order], prepend=numbers[order[0]] - 1))
        counts = np.diff(np.append(heads, len(order)))
        means = np.add.reduceat(values[open_rows[order]], heads) / counts
        own_count, own_mean = np.repeat(counts, counts), np.repeat(means, counts)
        rows, enough = open_rows[order], own_count >= FEWEST
        # n values about their own mean have n − 1 degrees of freedom.
        spread = np.sqrt(own_count / np.maximum(own_count - 1, 1))
        left[rows[enough]] = ((values[rows] - own_mean) * spread)[enough]
        known[rows[enough]] = True
    return known, left


def _largest_error(left: Floats) -> TimeError:
    """The error of a sum by the length of block that makes its interval the widest."""
    count = len(left)
    lengths = [some for some in _BLOCKS if 2 * some <= count]
    found = [_error_by_blocks(left, some) for some in (*lengths, count)]
    asked = _DRIFT_BLOCKS_OF_LONG if count >= _LONG else _DRIFT_BLOCKS
    found += [
        _error_of_drift(left, some, sign) for some, sign in asked.items() if count >= 4 * some
    ]
    return max(found, key=lambda one: one.reach_us)


def _sums_of_blocks(left: Floats, blocks: int) -> Floats:
    sums: Floats = np.add.reduceat(left, np.arange(blocks) * len(left) // blocks)
    return sums


def _error_by_blocks(left: Floats, blocks: int) -> TimeError:
    """The error of a sum whose blocks do not know of each other."""
    sums = _sums_of_blocks(left, blocks)
    error = math.sqrt(blocks * float(sums.var(ddof=1)))
    return TimeError(error_us=error, freedom=blocks - 1)


def _error_of_drift(left: Floats, blocks: int, sign: float) -> TimeError:
    """The error of a sum whose blocks resemble their neighbours, as in a drift that outlasts them.

    Their correlation r, which a sample understates (Marriott and Pope, "Bias in the estimation of
    autocorrelations", Biometrika 41, 1954), makes n blocks worth n (1 - r) / (1 + r).
    """
    plain, sums = _error_by_blocks(left, blocks), _sums_of_blocks(left, blocks)
    off = sums - sums.mean()
    power = float(off @ off)
    seen = float(off[1:] @ off[:-1]) / power if power > 0 else 0.0
    if seen < sign / math.sqrt(blocks):
        return plain
    likely = min((blocks * seen + 1) / (blocks - 4), _STRONGEST)
    share = (1 - likely) / (1 + likely)
    freedom = max(1, math.floor(blocks * share) - 1)
    return TimeError(error_us=plain.error_us / math.sqrt(share), freedom=freedom)


def joint_error(parts: Iterable[TimeError | None]) -> TimeError | None:
    """The error of a sum of independent times; None where that of one is not known."""
    errors: list[TimeError] = []
    for part in parts:
        if part is None:
            return None
        errors.append(part)
    if not errors:
        return None
    return TimeError(
        error_us=math.hypot(*(one.error_us for one in errors)),
        freedom=min(one.freedom for one in errors),
    )
