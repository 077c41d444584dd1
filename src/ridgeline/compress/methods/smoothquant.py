"""Part of what makes inputs hard to round is moved into the weights.

Xiao et al., "SmoothQuant", arXiv 2211.10438, equation 4: s = max|x|^α / max|w|^(1 − α); inputs are
divided by s, weights multiplied. The migration strength α is searched for each group of matrices
that share an input, by the error of their outputs with inputs and weights rounded; leaving things
as they are is one of the candidates, so that a model without outliers is not harmed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.compress import rounding
from ridgeline.compress.methods import rtn
from ridgeline.compress.methods.rtn import Rounded
from ridgeline.compress.watching.statistics import CalibrationStatistics
from ridgeline.records.scheme import NumberFormat, Scheme

NEEDS = frozenset({"max_abs", "rows"})
"""The fields of `CalibrationStatistics` that are looked at."""

STRENGTHS = tuple(0.05 * step for step in range(5, 20))
"""α that are tried."""


@torch.no_grad()
def scale(
    weights: list[Tensor], seen: list[CalibrationStatistics], scheme: Scheme, channels: Tensor
) -> Tensor:
    """The scale [in] that the inputs are to be divided by; ones where nothing helps.

    Args:
        weights: [out, in] each, all that share the inputs.
        seen: Of each.
        scheme: With `weights` and `activations`.
        channels: [in], of each column the channel whose scale it has.
    """
    ones = weights[0].new_ones(weights[0].shape[1], dtype=torch.float32)
    reached = [(one.max_abs, one.rows) for one in seen]
    largest = [most for most, rows in reached if most is not None and rows is not None]
    if len(largest) < len(weights):
        return ones
    inputs = _per_channel(torch.stack(largest).amax(0), channels)
    columns = torch.stack([weight.float().abs().amax(0) for weight in weights]).amax(0)
    columns = _per_channel(columns, channels)
    best, least = ones, _error(weights, seen, ones, scheme)
    for strength in STRENGTHS:
        raw = inputs.clamp(min=1e-5).pow(strength) / columns.clamp(min=1e-5).pow(1 - strength)
        candidate = raw.clamp(min=1e-5)
        error = _error(weights, seen, candidate, scheme)
        if error < least:
            best, least = candidate, error
    return best


def quantise(
    weight: Tensor,
    scheme: Scheme,
    seen: CalibrationStatistics,
    mask: Tensor | None = None,
    name: str = "a weight",
) -> Rounded:
    """Round to nearest, as `rtn.quantise`: all that is particular has been done by `scale`."""
    return rtn.quantise(weight, scheme, seen, mask, name)


def _per_channel(values: Tensor, channels: Tensor) -> Tensor:
    """The largest over columns of one channel, for each column."""
    found = values.new_zeros(int(channels.max()) + 1)
    return found.scatter_reduce(0, channels, values, "amax")[channels]


def _error(
    weights: list[Tensor], seen: list[CalibrationStatistics], s: Tensor, scheme: Scheme
) -> float:
    """‖X Wᵀ − X̂ Ŵᵀ‖², inputs and weights rounded after scaling by s."""
    assert scheme.weights is not None
    total = 0.0
    done: dict[int, tuple[Tensor, Tensor]] = {}
    for weight, one in zip(weights, seen, strict=True):
        assert one.rows is not None
        if id(one) not in done:
            done[id(one)] = (one.rows.float(), _inputs(one, s, scheme.activations))
        exact, rounded = done[id(one)]
        scaled = (weight.float() * s).to(weight.dtype)
        wrong = rounded @ rounding.to_nearest(scaled, scheme.weights).dequantised().T
        wrong -= exact @ weight.float().T
        total += float(wrong.square().sum())
    return total


def _inputs(seen: CalibrationStatistics, s: Tensor, form: NumberFormat | None) -> Tensor:
    """The sample of inputs divided by s, on the grid that they will have."""
    assert seen.rows is not None
    x = seen.rows.float() / s
    if form is None:
        return x
    if form.dynamic:
        return rounding.rounded(x, rounding.grid(x, form))
    assert seen.max_abs is not None
    # A static range is one for all tokens; what was seen of each channel bounds it.
    most = (seen.max_abs / s).amax().reshape(1, 1)
    low = -most if bool((x < 0).any()) else torch.zeros_like(most)
    return rounding.rounded(x, rounding.grid_between(low, most, form, torch.float32))
