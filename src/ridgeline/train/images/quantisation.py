"""Image classifiers trained with rounded numbers, so that quantising them then loses little.

The forward pass of convolutions and linear layers sees weights on the levels that `ridgeline
compress` will give them, a range per output channel, and inputs on levels whose range follows the
batches (Jacob et al., arXiv 1712.05877, section 3); gradients go straight through
(`kernels/fake_quantisation`). Weights are rounded as they are, not after their batch norm was
folded in: folding multiplies an output channel by one number, which moves its levels and its
weights alike. As compression does, each channel's range is the share of its own with the least
squared error; it is searched again every few steps.

Late in the run batch norms keep their statistics and activations their ranges (Krishnamoorthi,
arXiv 1806.08342, section 3.2.2): what is trained last computes as it will when it is saved. The
exact weights are saved; `ridgeline compress MODEL --scheme NAME` rounds them as they were trained.
That scheme rounds to nearest: GPTQ would bring the rounded network nearer to the exact weights,
which nobody trained to be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from ridgeline.errors import InputError
from ridgeline.kernels.fake_quantisation.straight_through import (
    FakeActivation,
    FakeWeight,
    per_channel,
    round_through,
)
from ridgeline.kernels.number_formats.grid import grid_between
from ridgeline.records.recipe import Recipe
from ridgeline.records.recipe_compression import RecipeQuantisation
from ridgeline.records.scheme import NumberFormat, Scheme
from ridgeline.records.scheme_names import parse
from ridgeline.train.part import FilledModel, Part

_FREEZE_SHARE = 0.75
"""The share of the steps before statistics freeze, where the recipe does not say."""
_SHARES = tuple(1 - 0.02 * step for step in range(41))
"""Shares of a channel's range that are tried, as compression tries them."""
_SEARCH_STEPS = 25
"""Steps between two searches; ranges move slower than weights."""


class SearchedWeight(FakeWeight):
    """Weights on the levels of integers, a range for each output channel."""

    share: Tensor
    """The share of each channel's largest magnitude that levels reach to, [out]."""

    def __init__(self, form: NumberFormat, channels: int) -> None:
        super().__init__(form)
        self.register_buffer("share", torch.ones(channels))

    @torch.no_grad()
    def search(self, weight: Tensor) -> None:
        """Choose each channel's share anew.

        Args:
            weight: [out, in, …].
        """
        best = torch.full_like(self.share, torch.inf)
        for share in _SHARES:
            tried = torch.full_like(self.share, share)
            error = (self._rounded(weight, tried) - weight).square().flatten(1).sum(1)
            self.share.copy_(torch.where(error < best, tried, self.share))
            best = torch.minimum(best, error)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight as integers will have it."""
        return self._rounded(weight, self.share)

    def _rounded(self, weight: Tensor, share: Tensor) -> Tensor:
        rows = weight.detach().flatten(1).float()
        on = grid_between(rows.amin(1) * share, rows.amax(1) * share, self.form, torch.float32)
        zero = None if on.zeros is None else per_channel(weight, on.zeros, 0)
        scale = per_channel(weight, on.scales, 0).to(weight.dtype)
        return round_through(weight, scale, zero, self.form.bits)


class RoundedConv2d(nn.Conv2d):
    """A convolution that multiplies rounded numbers; `round_layers` makes it of a plain one."""

    weight_rounding: SearchedWeight
    input_rounding: FakeActivation
    rounds: bool

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """The convolution, computed with rounded numbers."""
        if not self.rounds:
            return super().forward(input)
        rounded = self.input_rounding(input)
        return self._conv_forward(rounded, self.weight_rounding(self.weight), self.bias)


class RoundedImageLinear(nn.Linear):
    """A linear layer that multiplies rounded numbers, with one range for all of its inputs."""

    weight_rounding: SearchedWeight
    input_rounding: FakeActivation
    rounds: bool

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """The linear layer, computed with rounded numbers."""
        if not self.rounds:
            return super().forward(input)
        rounded = self.input_rounding(input)
        return functional.linear(rounded, self.weight_rounding(self.weight), self.bias)


Rounded = RoundedConv2d | RoundedImageLinear
_ROUNDED: dict[type[nn.Module], type[Rounded]] = {
    nn.Conv2d: RoundedConv2d,
    nn.Linear: RoundedImageLinear,
}


class RoundedImages(Part):
    """The `[quantisation]` of an image classifier's recipe."""

    def __init__(
        self, modules: Sequence[nn.Module], wanted: RecipeQuantisation, steps: int
    ) -> None:
        self._wanted = wanted
        self._freeze = wanted.freeze_step
        if self._freeze is None:
            self._freeze = max(wanted.begin_step, round(_FREEZE_SHARE * steps))
        self._layers = [one for part in modules for one in rounded_layers(part)]
        self._norms = [n for part in modules for n in part.modules() if isinstance(n, _BatchNorm)]

    @staticmethod
    def prepare(module: nn.Module, recipe: Recipe) -> nn.Module:
        """Let convolutions and linear layers compute with rounded numbers."""
        if recipe.images is not None and recipe.quantisation is not None:
            round_layers(module, recipe.quantisation)
        return module

    @classmethod
    def make(cls, filled: FilledModel) -> RoundedImages | None:
        """`[quantisation]` of the recipe, where it is of images."""
        recipe = filled.recipe
        if recipe.images is None or recipe.quantisation is None:
            return None
        assert recipe.steps is not None  # the session saw to it
        return cls(filled.modules, recipe.quantisation, recipe.steps)

    def before_step(self, step: int) -> str:
        """Begin to round, or freeze, when it is time; a run may go on anywhere."""
        assert self._freeze is not None
        rounds, frozen = step >= self._wanted.begin_step, step >= self._freeze
        searches = rounds and (step - self._wanted.begin_step) % _SEARCH_STEPS == 0
        for layer in self._layers:
            layer.rounds = rounds
            if searches:
                layer.weight_rounding.search(layer.weight)
            layer.input_rounding.train(not frozen)
        for norm in self._norms:
            norm.train(not frozen)
        if step == self._freeze:
            return "statistics of batch norms and ranges of activations stay from here on"
        return f"rounds to {self._wanted.scheme}" if step == self._wanted.begin_step else ""


def rounded_layers(part: nn.Module) -> Iterator[Rounded]:
    """The layers of a model that compute with rounded numbers."""
    for one in part.modules():
        if isinstance(one, RoundedConv2d | RoundedImageLinear):
            yield one


def round_layers(part: nn.Module, wanted: RecipeQuantisation) -> None:
    """Let convolutions and linear layers compute with rounded numbers, in place.

    Parameters and their names stay as they are.

    Raises:
        InputError: The scheme is not one to train with, or no layer is left to round.
    """
    scheme = image_scheme(wanted.scheme)
    assert scheme.weights is not None
    assert scheme.activations is not None
    count = 0
    for name, layer in part.named_modules():
        kind = _ROUNDED.get(type(layer))
        if kind is None or any(fnmatchcase(name, one) for one in wanted.whole):
            continue
        layer.__class__ = kind
        assert isinstance(layer, RoundedConv2d | RoundedImageLinear)
        layer.weight_rounding = SearchedWeight(scheme.weights, layer.weight.shape[0])
        layer.input_rounding = FakeActivation(scheme.activations)
        layer.rounds = wanted.begin_step == 0
        count += 1
    if not count:
        raise InputError(
            f"recipe: [quantisation]: {type(part).__name__} has no convolution or linear layer to"
            " round, or quantisation.whole names them all"
        )


def image_scheme(name: str) -> Scheme:
    """The scheme of a recipe, one that rounds a finished model as training does: to nearest.

    Raises:
        InputError: No such scheme, or one that training cannot follow.
    """
    scheme = parse(name)
    why = ""
    if not scheme.images or scheme.weights is None or scheme.activations is None:
        why = "is for language models"
    elif scheme.equalise or scheme.correct_bias:
        why = "changes the weights of a finished model"
    elif scheme.activations.dynamic:
        why = "takes ranges of activations from each batch"
    elif scheme.method != "rtn":
        why = f"rounds by {scheme.method} and not to nearest, as training does"
    if why:
        raise InputError(
            f"recipe: quantisation.scheme {name!r} {why}; an image classifier is trained with,"
            " and compressed by, w8a8-int8-rtn or w4a8-int8-rtn"
        )
    return scheme
