"""Columns whose inputs are large are scaled up before rounding, and ranges are cut where it helps.

Lin et al., "AWQ", arXiv 2306.00978. Section 3.2: s = mean|x|^α, the inputs divided and the weights
multiplied by it, α from a grid, the one with the least error of all outputs that share the inputs.
Beside the paper's s also mean|x|^α / mean|w|^(1 − α) is tried (as its authors' later code does,
"duo scaling"). α = 0 is among them, so that the search is never worse than rounding to nearest on
what it looks at. Then each range is cut to the share that leaves the least error (section 4.1's
"clipping").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress import rounding
from ridgeline.compress.methods import rtn
from ridgeline.compress.methods.rtn import Rounded, gram_of, judged
from ridgeline.compress.watching.statistics import CalibrationStatistics, energy
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
    inputs = [one.rows for one in seen if one.rows is not None]
    sums = [one.mean_abs * one.num_tokens for one in seen if one.mean_abs is not None]
    ones = weights[0].new_ones(weights[0].shape[1], dtype=torch.float32)
    if len(inputs) < len(weights) or len(sums) < len(weights):
        return ones
    mean = torch.stack(sums).sum(0) / sum(one.num_tokens for one in seen)
    sizes = torch.stack([_relative(weight, form) for weight in weights]).mean(0)
    by_input: dict[int, tuple[list[Tensor], Tensor]] = {}
    for weight, rows in zip(weights, inputs, strict=True):
        if id(rows) not in by_input:
            by_input[id(rows)] = ([], gram_of(rows))
        by_input[id(rows)][0].append(weight)
    search = _Search(tuple(by_input.values()), form)
    return search.best(
        ones, _candidates(_per_channel(mean, channels), _per_channel(sizes, channels))
    )


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


_NUMBERS = 2**20
"""Weights that are looked at together: what is made of them stays in a cache's reach."""


class _Search:
    """For the scale that leaves the least error of all outputs that share their inputs.

    Args:
        weights: Matrices [out, in] with XᵀX of what flows into them, [in, in].
        form: What they are rounded to.
    """

    def __init__(
        self, weights: tuple[tuple[list[Tensor], Tensor], ...], form: NumberFormat
    ) -> None:
        self._form = form
        self._weights = weights

    def best(self, first: Tensor, others: Iterator[Tensor]) -> Tensor:
        """One of them; the first where no other is better for certain."""
        found, least = first, self._error(first, torch.bfloat16)
        for candidate in others:
            error = self._error(candidate, torch.bfloat16)
            if error < least:
                found, least = candidate, error
        return found if self._error(found) < self._error(first) else first

    def _error(self, s: Tensor, kind: torch.dtype = torch.float32) -> float:
        """‖(W − Ŵ) X‖² over all that share the inputs, Ŵ rounded after scaling by s.

        The differences are taken in `kind`.
        """
        return sum(
            energy((self._off(part, s).to(kind) for part in self._parts(stacked)), gram)
            for stacked, gram in self._weights
        )

    def _off(self, weight: Tensor, s: Tensor) -> Tensor:
        exact = weight.float()
        scaled = (exact * s).to(weight.dtype)
        return rounding.nearest(scaled, rounding.grid(scaled, self._form)).div_(s).sub_(exact)

    def _parts(self, weights: Sequence[Tensor]) -> Iterator[Tensor]:
        """Rows that are rounded by themselves, or the whole where they share a scale."""
        whole = self._form.share == "tensor" or self._form.kind == "nvfp4"
        for weight in weights:
            size = len(weight) if whole else _NUMBERS // max(1, weight.shape[1])
            yield from weight.split(max(1, size))


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
