"""The range of a tensor's numbers that levels are spread over, from what calibration saw.

A narrower range cuts the largest numbers and rounds all others finer. Each observer gives
(low, high) with low ≤ 0 ≤ high; `grid_between` of `number_formats/grid.py` makes levels of it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ridgeline.kernels.fake_quantisation.histogram import TensorHistogram
from ridgeline.records.scheme import NumberFormat

Range = tuple[float, float]

OUTSIDE = 1e-4
"""Share of the numbers that percentile leaves out at each end (99.99 %, as is usual)."""
SHARES = tuple(1 - 0.02 * step for step in range(46))
"""Shares of an end that squared error tries: 1 down to 0.1."""
_ROUNDS = 2
_ENTROPY_BINS = 2048
"""Bins of magnitudes (Migacz, "8-bit Inference with TensorRT", GTC 2017, slide 39)."""
_ENTROPY_STEP = 16
_TINY = 1e-12


def minmax(seen: TensorHistogram, form: NumberFormat) -> Range:  # noqa: ARG001  # as others
    """All that was seen."""
    return seen.low, seen.high


def average(seen: TensorHistogram, form: NumberFormat) -> Range:  # noqa: ARG001  # as others
    """Moving averages of the batches' ends (arXiv 1712.05877, section 3.1)."""
    return min(0.0, seen.average_low), max(0.0, seen.average_high)


def percentile(seen: TensorHistogram, form: NumberFormat) -> Range:
    """All but a small share at each end; of magnitudes where levels are symmetric."""
    if form.symmetric:
        most = _inside(_magnitudes(seen)) * seen.reach
        return max(seen.low, -most), min(seen.high, most)
    whole = _inside(seen.counts)
    low = (1 - _inside(seen.counts.flip(0))) * 2 * seen.reach - seen.reach
    high = whole * 2 * seen.reach - seen.reach
    return min(0.0, max(seen.low, low)), max(0.0, min(seen.high, high))


def _magnitudes(seen: TensorHistogram) -> Tensor:
    """Counts of magnitudes, from 0 to reach."""
    half = len(seen.counts) // 2
    return seen.counts[half:] + seen.counts[:half].flip(0)


def _inside(counts: Tensor) -> float:
    """The share of the bins, from the first, that holds all but `OUTSIDE`."""
    summed = counts.cumsum(0)
    if not len(summed) or float(summed[-1]) == 0.0:
        return 1.0
    place = int(torch.searchsorted(summed, (1 - OUTSIDE) * summed[-1]))
    return (place + 1) / len(counts)


def mse(seen: TensorHistogram, form: NumberFormat) -> Range:
    """The ends with the least squared error, searched in turns."""
    occupied = seen.counts > 0
    values, counts = seen.centres()[occupied], seen.counts[occupied]
    low, high = seen.low, seen.high
    if form.symmetric:
        most = max(-low, high)
        ends = [(-most * share, most * share) for share in SHARES]
        return min(ends, key=lambda one: _error(values, counts, one, form))
    best = (low, high)
    for _ in range(_ROUNDS):
        best = min(((best[0], high * one) for one in SHARES),
                   key=lambda one: _error(values, counts, one, form))  # fmt: skip
        if low < 0:
            best = min(((low * one, best[1]) for one in SHARES),
                       key=lambda one: _error(values, counts, one, form))  # fmt: skip
        else:
            break
    return best


def _error(values: Tensor, counts: Tensor, ends: Range, form: NumberFormat) -> float:
    """The squared error of rounding what was seen to levels between the ends."""
    low, high = ends
    if form.symmetric:
        step = max(-low, high) / ((2**form.bits - 1) / 2)
        lowest, highest = -(2 ** (form.bits - 1)), 2 ** (form.bits - 1) - 1
    else:
        step = (high - low) / (2**form.bits - 1)
        lowest = round(low / step) if step else 0
        highest = lowest + 2**form.bits - 1
    if not step:
        return float((values.square() * counts).sum())
    rounded = (values / step).round_().clamp_(lowest, highest).mul_(step)
    return float((rounded.sub_(values).square_() * counts).sum())


def entropy(seen: TensorHistogram, form: NumberFormat) -> Range:
    """The magnitudes whose histogram, cut and rounded, diverges least from what was seen.

    Migacz, "8-bit Inference with TensorRT", GTC 2017, slides 38 and 39.
    """
    magnitudes = _magnitudes(seen)
    whole = max(-seen.low, seen.high)
    merged = magnitudes.view(_ENTROPY_BINS, -1).sum(1)
    # The first bin holds what ReLU set to 0, which every range keeps exactly.
    merged[0] = merged[1]
    used = min(_ENTROPY_BINS, int(-(-whole * _ENTROPY_BINS // seen.reach)) if seen.reach else 1)
    one_sided = seen.low >= 0 and not form.symmetric
    num_levels = 2**form.bits if one_sided else 2 ** (form.bits - 1)
    best, chosen = float("inf"), used
    for bins in [*range(num_levels, used, _ENTROPY_STEP), used]:
        if bins < num_levels:
            continue
        lost = _divergence(merged[:used], bins, num_levels)
        if lost < best:
            best, chosen = lost, bins
    most = whole if chosen == used else chosen / _ENTROPY_BINS * seen.reach
    return max(seen.low, -most), min(seen.high, most)


def _divergence(counts: Tensor, bins: int, num_levels: int) -> float:
    """KL of the first bins, all beyond added to the last, from the same spread over levels."""
    kept = counts[:bins].clone()
    present = (kept > 0).double()
    place = torch.arange(bins) * num_levels // bins
    sums = torch.zeros(num_levels, dtype=torch.float64).index_add_(0, place, kept)
    filled = torch.zeros(num_levels, dtype=torch.float64).index_add_(0, place, present)
    spread = (sums / filled.clamp_min(1))[place] * present
    kept[-1] += counts[bins:].sum()
    known, other = kept / kept.sum(), spread / spread.sum().clamp_min(_TINY)
    some = known > 0
    return float((known[some] * (known[some] / other[some].clamp_min(_TINY)).log()).sum())


RANGES: dict[str, Callable[[TensorHistogram, NumberFormat], Range]] = {
    "minmax": minmax,
    "average": average,
    "percentile": percentile,
    "mse": mse,
    "entropy": entropy,
}
"""How a range is found, by the name that a scheme gives."""


def find_range(seen: TensorHistogram, form: NumberFormat) -> Range:
    """The range that the format's observer finds; nothing seen gives (0, 0)."""
    if not seen.num_batches or not seen.reach:
        return 0.0, 0.0
    return RANGES[form.observer](seen, form)
