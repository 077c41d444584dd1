"""Training with quantised weights, so that quantising them afterwards loses little.

The forward pass of a linear layer sees weights, and activations where the scheme says so, rounded
exactly as `ridgeline compress` will round them; the optimizer keeps and changes the exact ones. The
gradient of rounding is zero almost everywhere, so it is taken to be 1 (the straight-through
estimator, Bengio et al., arXiv 1308.3432, section 4; Jacob et al., arXiv 1712.05877, section 3).
The step between levels is learned as in LSQ (Esser et al., arXiv 1902.08153, equation 3), but is no
parameter of its own: it follows the ends of each group's range, so its gradient is that of the
largest weight, and the weights alone say how they are rounded.

The exact weights are what is saved; `ridgeline compress MODEL --scheme NAME` by the same name then
rounds them as they were trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.errors import InputError
from ridgeline.kernels.number_formats.grid import in_groups, levels, value, widest
from ridgeline.records.recipe import Recipe
from ridgeline.records.scheme import NumberFormat, Scheme
from ridgeline.records.scheme_names import parse
from ridgeline.train.blocks import require_blocks
from ridgeline.train.part import Part


class _StraightThrough(torch.autograd.Function):
    """Rounds forward; backward as if only the range of each group had been chosen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, form: NumberFormat) -> Tensor:
        on = widest(x, form)
        rounded = value(levels(x, on), on).to(x.dtype)
        ctx.save_for_backward(x, rounded)
        ctx.form = form
        return rounded

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, rounded = ctx.saved_tensors
        (gradient,) = gradients
        return gradient + _through_steps(gradient, x, rounded, ctx.form), None


def _through_steps(gradient: Tensor, x: Tensor, rounded: Tensor, form: NumberFormat) -> Tensor:
    """The gradient of the steps, where the ends are that they follow.

    A rounded number is x + s e, with the step s and an error of e steps that stays the same: ∂/∂s
    is e (LSQ's equation 3). s is the width of the group's range over a constant.

    Args:
        gradient: Of `rounded`, as all tensors here [rows, depth].
        x: What was rounded.
        rounded: To what.
        form: On which grid; the powers of two of MX do not follow small changes.
    """
    found = torch.zeros_like(gradient)
    if form.kind.startswith("mx"):
        return found
    grouped, ends = in_groups(x, form), in_groups(found, form)
    of_width = in_groups(gradient.float() * (rounded - x), form).sum(dim=-1, keepdim=True)
    if form.symmetric:
        largest = grouped.abs().argmax(dim=-1, keepdim=True)
        share = _over(of_width, grouped.gather(-1, largest))
        ends.scatter_add_(-1, largest, share.to(found.dtype))
        return found
    high, highest = grouped.max(dim=-1, keepdim=True)
    low, lowest = grouped.min(dim=-1, keepdim=True)
    share = _over(of_width, high.clamp(min=0) - low.clamp(max=0)).to(found.dtype)
    ends.scatter_add_(-1, highest, share * (high > 0))
    ends.scatter_add_(-1, lowest, -share * (low < 0))
    return found


def _over(part: Tensor, whole: Tensor) -> Tensor:
    """The quotient; 0 where there is no range."""
    return torch.where(whole == 0, 0.0, part / whole)


def straight_through(x: Tensor, form: NumberFormat) -> Tensor:
    """A matrix [rows, depth] rounded to a format; its gradient as the module says."""
    rounded: Tensor = _StraightThrough.apply(x, form)
    return rounded


class RoundedLinear(nn.Linear):
    """A linear layer that multiplies rounded numbers; `round_linears` makes it of a plain one."""

    weight_form: NumberFormat
    input_form: NumberFormat | None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """The linear layer, computed with rounded numbers."""
        if self.input_form is not None and input.numel():
            input = straight_through(input.flatten(0, -2), self.input_form).view_as(input)  # noqa: A001
        return functional.linear(input, straight_through(self.weight, self.weight_form), self.bias)


class RoundedTraining(Part):
    """The `[quantisation]` of a recipe; it only prepares modules."""

    @staticmethod
    def prepare(module: nn.Module, recipe: Recipe) -> nn.Module:
        """Let linear layers compute with rounded numbers."""
        if recipe.images is None:
            round_linears(module, recipe)
        return module


def round_linears(part: nn.Module, recipe: Recipe) -> None:
    """Let the linear layers of the blocks compute with rounded numbers, in place.

    Parameters and their names stay as they are.

    Raises:
        InputError: The scheme is not one to train with, or a layer's depth does not fit its groups.
    """
    if recipe.quantisation is None:
        return
    scheme = scheme_of(recipe.quantisation.scheme)
    assert scheme.weights is not None
    count = 0
    inside = {id(one) for block in require_blocks(part, "rounding") for one in block.modules()}
    for name, module in part.named_modules():
        if type(module) is nn.Linear and id(module) in inside and not _ignored(name, scheme):
            _check_depth(name, module, scheme)
            module.__class__ = RoundedLinear
            module.weight_form = scheme.weights
            module.input_form = scheme.activations
            count += 1
    if not count:
        raise InputError(
            f"recipe: [quantisation]: {type(part).__name__} has no linear layers to round (GPT-2"
            " keeps its weights turned); leave the table out for this model"
        )


def scheme_of(name: str) -> Scheme:
    """The scheme of a recipe.

    Raises:
        InputError: No such scheme, or one that training cannot follow.
    """
    scheme = parse(name)
    why = ""
    if scheme.weights is None or scheme.kv is not None or scheme.pruning is not None:
        why = "does not say how weights alone are rounded"
    elif scheme.method != "rtn":
        why = f"is {scheme.method}, which rounds a finished model; train with rtn"
    elif scheme.weights.observer != "minmax":
        why = f"searches its range ({scheme.weights.observer}); train with minmax"
    elif scheme.activations is not None and not scheme.activations.dynamic:
        why = "has static ranges of activations, which calibration finds; train with dynamic ones"
    if why:
        raise InputError(f"recipe: quantisation.scheme {name!r} {why}, such as w4a16-rtn-g32")
    return scheme


def _ignored(name: str, scheme: Scheme) -> bool:
    return any(name == one or name.endswith(f".{one}") for one in scheme.ignore)


def _check_depth(name: str, module: nn.Linear, scheme: Scheme) -> None:
    for form in (scheme.weights, scheme.activations):
        if form is not None and form.group and module.in_features % form.group:
            raise InputError(
                f"recipe: quantisation.scheme {scheme.name!r}: the {module.in_features} inputs of"
                f" {name} do not divide into groups of {form.group}; name another group, such as"
                " g32, or channel"
            )
