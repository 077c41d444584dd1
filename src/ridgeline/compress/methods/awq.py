"""Columns whose inputs are large are scaled up before rounding, and ranges are cut where it helps.

Lin et al., "AWQ", arXiv 2306.00978. Section 3.2: s = mean|x|^α, the inputs divided and the weights
multiplied by it, α from a grid, the one with the least error of all outputs that share the inputs.
Beside the paper's s also mean|x|^α / mean|w|^(1 − α) is tried (as its authors' later code does,
"duo scaling"). α = 0 is among them, so that the search is never worse than rounding to nearest on
what it looks at. Then each range is cut to the share that leaves the least error (section 4.1's
"clipping").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress import rounding
from ridgeline.compress.methods import rtn
from ridgeline.compress.methods.rtn import Rounded, gram_of, judged
from ridgeline.compress.watching.statistics import CalibrationStatistics
from ridgeline.records.scheme import NumberFormat, Scheme

NEEDS = frozenset({"mean_abs", "rows"})
"""The fields of `CalibrationStatistics` that are looked at."""

STEPS = 20
"""Values of α that are tried between 0 and 1."""

SHARES = tuple(1 - 0.05 * step for step in range(11))
"""Shares of a range that are tried."""


@torch.no_grad()
def scale(
    weights: list[Tensor], seen: list[CalibrationStatistics], scheme: Scheme, channels: Tensor
) -> Tensor:
    """The scale [in] that the inputs are to be divided by; ones where nothing helps.

    Args:
        weights: [out, in] each, all that share the inputs.
        seen: Of each.
        scheme: With `weights`.
        channels: [in], of each column the channel whose scale it has.
    """
    form = scheme.weights
    assert form is not None
    grams = [gram_of(one.rows) for one in seen if one.rows is not None]
    sums = [one.mean_abs * one.num_tokens for one in seen if one.mean_abs is not None]
    ones = weights[0].new_ones(weights[0].shape[1], dtype=torch.float32)
    if len(grams) < len(weights) or len(sums) < len(weights):
        return ones
    mean = torch.stack(sums).sum(0) / sum(one.num_tokens for one in seen)
    sizes = torch.stack([_relative(weight, form) for weight in weights]).mean(0)
    best, least = ones, _error(weights, grams, ones, form)
    for candidate in _candidates(_per_channel(mean, channels), _per_channel(sizes, channels)):
        error = _error(weights, grams, candidate, form)
        if error < least:
            best, least = candidate, error
    return best


@torch.no_grad()
def quantise(
    weight: Tensor,
    scheme: Scheme,
    seen: CalibrationStatistics,
    mask: Tensor | None = None,
    name: str = "a weight",
) -> Rounded:
    """Round a weight that is scaled already: each range is cut if its outputs gain by it.

    Args:
        weight: [out, in], in the dtype of the scales that are saved.
        scheme: With `weights`.
        seen: With `rows`, of the inputs as they are after scaling.
        mask: Pruned weights are 0, which every grid has.
        name: Of the layer, for messages.

    Raises:
        InputError: See `rounding.check`.
    """
    plain = rtn.quantise(weight, scheme, seen, mask, name)
    form = scheme.weights
    assert form is not None
    if seen.rows is None:
        notices = ("calibration never reached it: rounded to nearest",)
        return replace(plain, notices=notices)
    if form.kind != "int" or form.share == "tensor":
        return plain
    cut = judged(weight, _cut(weight, form, seen.rows.float()), seen)
    return cut if cut.error < plain.error else plain


def _candidates(mean: Tensor, sizes: Tensor) -> Iterator[Tensor]:
    for step in range(1, STEPS + 1):
        power = step / STEPS
        for raw in (mean.pow(power), mean.pow(power) / sizes.pow(1 - power)):
            bounded = raw.clamp(min=1e-4)
            yield bounded / (bounded.max() * bounded.min()).sqrt()


def _relative(weight: Tensor, form: NumberFormat) -> Tensor:
    """How large the weights of each column are beside the largest that share their scale, [in]."""
    parts = rounding.in_groups(weight.float().abs(), form)
    shares = (parts / parts.amax(-1, keepdim=True).clamp(min=1e-10)).reshape(weight.shape)
    return shares.mean(0).clamp(min=1e-4)


def _per_channel(values: Tensor, channels: Tensor) -> Tensor:
    """The mean over columns of one channel, for each column."""
    means = values.new_zeros(int(channels.max()) + 1)
    means.scatter_reduce_(0, channels, values, "mean", include_self=False)
    return means[channels]


def _error(weights: list[Tensor], grams: list[Tensor], s: Tensor, form: NumberFormat) -> float:
    """‖(W − Ŵ) X‖² over all that share the inputs, Ŵ rounded after scaling by s."""
    total = 0.0
    for weight, gram in zip(weights, grams, strict=True):
        scaled = (weight.float() * s).to(weight.dtype)
        off = rounding.nearest(scaled, rounding.grid(scaled, form)) / s - weight.float()
        total += float(((off @ gram) * off).sum())
    return total


def _cut(weight: Tensor, form: NumberFormat, rows: Tensor) -> Quantised:
    """Each group with the share of its range that is best for what the group adds to the output."""
    parts = rounding.in_groups(weight, form)
    grouped = rows.unflatten(1, (parts.shape[1], -1))
    grams = torch.einsum("tgi,tgj->gij", grouped, grouped)
    low, high = rounding.minmax(parts, form)
    best = torch.full(low.shape, torch.inf)
    share = torch.ones(low.shape)
    for tried in SHARES:
        ends = (low.float() * tried, high.float() * tried)
        grid = rounding.grid_between(*ends, form, weight.dtype)
        off = rounding.nearest(weight, grid) - weight.float()
        off = off.unflatten(1, (parts.shape[1], -1))
        error = (torch.einsum("ogi,gij->ogj", off, grams) * off).sum(-1)
        better = error < best
        best, share = torch.where(better, error, best), torch.where(better, tried, share)
    ends = (low.float() * share, high.float() * share)
    return rounding.on_grid(weight, rounding.grid_between(*ends, form, weight.dtype))
