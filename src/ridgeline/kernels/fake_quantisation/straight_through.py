"""Rounding with a gradient, for training with the numbers that will be computed with.

The gradient of rounding is taken to be 1 within the range and 0 beyond it (straight-through
estimator, Bengio et al., arXiv 1308.3432, section 4). With learned steps the step gets the gradient
of LSQ (Esser et al., arXiv 1902.08153, equations 1 to 3, section 2.2).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ridgeline.kernels.fake_quantisation.histogram import MOMENTUM
from ridgeline.kernels.number_formats.grid import grid_between
from ridgeline.kernels.number_formats.integer import bounds
from ridgeline.records.scheme import NumberFormat

_TINY = 1e-12


def round_through(x: Tensor, scale: Tensor, zero: Tensor | None, bits: int) -> Tensor:
    """x on the levels (q − zero) · scale, with the straight-through gradient, in the dtype of x.

    Args:
        x: Any shape that scale and zero broadcast to.
        scale: The step; no gradient.
        zero: The levels that stand for 0, None for 0.
        bits: 2 to 8.
    """
    lowest, highest = bounds(bits)
    offset = torch.zeros_like(scale) if zero is None else zero.to(scale.dtype)
    steps = x / scale + offset
    kept = steps.clamp(lowest, highest)
    rounded = kept + (kept.detach().round() - kept.detach())
    return (rounded - offset) * scale


def round_learned(x: Tensor, scale: Tensor, bits: int, *, unsigned: bool = False) -> Tensor:
    """x on symmetric levels whose step is learned (LSQ); x and scale both get gradients.

    Args:
        x: Any shape that scale broadcasts to.
        scale: The step, a parameter above 0.
        bits: 2 to 8.
        unsigned: Whether levels are 0 … 2^bits − 1, for what follows a ReLU.
    """
    lowest, highest = (0, 2**bits - 1) if unsigned else bounds(bits)
    balance = (x.numel() / scale.numel() * highest) ** -0.5
    step = scale.clamp_min(_TINY)
    step = step * balance + (step - step * balance).detach()
    kept = (x / step).clamp(lowest, highest)
    return (kept + (kept.detach().round() - kept.detach())) * step


def per_channel(x: Tensor, values: Tensor, axis: int) -> Tensor:
    """Values [channels] so that they broadcast along an axis of x."""
    return values.reshape([-1 if dim == axis else 1 for dim in range(x.ndim)])


class FakeWeight(nn.Module):
    """A parametrisation that rounds weights, a range per channel, as they are at each step.

        torch.nn.utils.parametrize.register_parametrization(conv, "weight", FakeWeight(form))

    With `learned` the steps are parameters that begin where LSQ does, at 2 mean|w| / √(levels).
    """

    def __init__(
        self, form: NumberFormat, *, axis: int = 0, learned_from: Tensor | None = None
    ) -> None:
        super().__init__()
        self.form, self.axis = form, axis
        self.step: nn.Parameter | None = None
        if learned_from is not None:
            rows = learned_from.detach().transpose(0, axis).flatten(1).abs().float()
            begin = 2 * rows.mean(1) / bounds(form.bits)[1] ** 0.5
            self.step = nn.Parameter(begin.clamp_min(_TINY))

    def forward(self, weight: Tensor) -> Tensor:
        """The weight as integers will have it."""
        if self.step is not None:
            return round_learned(weight, per_channel(weight, self.step, self.axis), self.form.bits)
        rows = weight.detach().transpose(0, self.axis).flatten(1)
        on = grid_between(rows.amin(1), rows.amax(1), self.form, torch.float32)
        zero = None if on.zeros is None else per_channel(weight, on.zeros, self.axis)
        scale = per_channel(weight, on.scales, self.axis).to(weight.dtype)
        return round_through(weight, scale, zero, self.form.bits)


class FakeActivation(nn.Module):
    """What rounds a tensor between layers; its range follows the batches while it trains.

    Begins with the first batch; `train(False)` keeps the range as it is.
    """

    low: Tensor
    high: Tensor
    seen: Tensor

    def __init__(self, form: NumberFormat) -> None:
        super().__init__()
        self.form = form
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """x as integers will have it; as it is where no batch was ever seen."""
        if self.training:
            self._follow(x.detach())
        if not int(self.seen):
            return x
        on = grid_between(self.low, self.high, self.form, torch.float32)
        return round_through(x, on.scales.to(x.dtype), on.zeros, self.form.bits)

    def _follow(self, x: Tensor) -> None:
        low, high = (one.float() for one in torch.aminmax(x))
        share = MOMENTUM if int(self.seen) else 1.0
        self.low.lerp_(low.clamp_max(0), share)
        self.high.lerp_(high.clamp_min(0), share)
        self.seen += 1
