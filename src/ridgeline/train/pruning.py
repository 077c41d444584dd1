"""Weights that are set to zero while a model trains, and stay there.

The share removed at step t, from t₀ to t₁ (Zhu and Gupta, arXiv 1710.01878, equation 1, from 0):

    s(t) = s₁ (1 - (1 - (t - t₀)/(t₁ - t₀))³)

Masks are chosen by magnitude, in each linear layer of the blocks by itself, from the whole matrix:
a rank that holds a shard gathers the others for a moment, so every layout chooses the same weights.
What is removed is zero from the choice on: its gradients are dropped before they are clipped or
remembered by the optimizer, and what the optimizer writes there all the same (decay, Muon's
rotation) is wiped out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ridgeline.checkpoints.layers import is_linear, is_transposed
from ridgeline.errors import InputError
from ridgeline.kernels.masks import keep_n_of_m, keep_share
from ridgeline.records.recipe_compression import RecipePruning
from ridgeline.train.blocks import require_blocks
from ridgeline.train.model import shard_of
from ridgeline.train.optimizers.build import named_parameters
from ridgeline.train.optimizers.shards import local
from ridgeline.train.part import FilledModel, Part, PartState


def share_at(step: int, wanted: RecipePruning) -> float:
    """How much of what is to go is gone in a step, 0 to 1.

    >>> wanted = RecipePruning(share=0.5, begin_step=100, end_step=300)
    >>> [share_at(step, wanted) for step in (99, 100, 200, 300)]
    [0.0, 0.0, 0.875, 1.0]
    """
    if step < wanted.begin_step:
        return 0.0
    if step >= wanted.end_step:
        return 1.0
    passed = (step - wanted.begin_step) / (wanted.end_step - wanted.begin_step)
    return 1.0 - (1.0 - passed) ** 3


def chooses_at(step: int, wanted: RecipePruning) -> bool:
    """Whether weights are chosen before this step."""
    inside = wanted.begin_step <= step <= wanted.end_step
    due = (step - wanted.begin_step) % wanted.every_steps == 0
    return inside and (due or step == wanted.end_step)


class Masks:
    """Which weights of this rank's modules stay."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        shadows: Sequence[Mapping[str, Tensor]] = (),
        *,
        every_layer: bool = False,
    ) -> None:
        """Keep all weights at first.

        Args:
            modules: What this rank holds of the filled model.
            shadows: Copies that follow the weights, by parameter, and are masked with them.
            every_layer: Choose in convolutions and linear layers wherever they are, not in blocks.

        Raises:
            InputError: Its layers are not linear ones.
        """
        turned = {
            id(weight): turned
            for one in modules
            for weight, turned in _matrices(one, every_layer=every_layer)
        }
        self.weights = {
            name: parameter
            for name, parameter in named_parameters(modules)
            if id(parameter) in turned
        }
        self._turned = {name for name, weight in self.weights.items() if turned[id(weight)]}
        # Tensors placed as the weights are, which a checkpoint cuts anew for another layout.
        self._shadows = shadows
        self.by_name = {
            name: torch.ones_like(weight, dtype=torch.bool, requires_grad=False)
            for name, weight in self.weights.items()
        }

    def check_pattern(self, n: int, m: int) -> None:
        """Refuse a pattern that some layer cannot have.

        Raises:
            InputError: It names the layer.
        """
        for name, weight in self.weights.items():
            try:
                depth = weight.shape[0] if name in self._turned else weight[0].numel()
                keep_n_of_m(torch.zeros(1, depth), n, m)
            except InputError as error:
                raise InputError(f"recipe: pruning.pattern: {name}: {error}") from None

    @torch.no_grad()
    def choose(self, share: float, pattern: tuple[int, int] | None = None) -> None:
        """Keep the largest weights of each layer, from now on; the others become zero.

        Every rank must call it.

        Args:
            share: Removed of each layer.
            pattern: In place of `share`.
        """
        for name, weight in self.weights.items():
            whole = weight.detach()
            whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
            size = whole.float().abs()
            size = size.T if name in self._turned else size.flatten(1)
            stays = keep_share(size, share) if pattern is None else keep_n_of_m(size, *pattern)
            stays = stays.T if name in self._turned else stays.view(whole.shape)
            local(self.by_name[name]).copy_(shard_of(stays, weight))
        self.apply()

    @torch.no_grad()
    def apply(self) -> None:
        """Make weights that went zero, in the model and in what follows it."""
        for name, weight in self.weights.items():
            mask = local(self.by_name[name])
            local(weight).mul_(mask)
            for shadow in self._shadows:
                if name in shadow:
                    local(shadow[name]).mul_(mask)

    @torch.no_grad()
    def apply_to_gradients(self) -> None:
        """Drop the gradients of weights that went; before clipping."""
        for name, weight in self.weights.items():
            if weight.grad is not None:
                local(weight.grad).mul_(local(self.by_name[name]))


class MaskedTraining(Part):
    """Training in which weights that were set to zero stay zero."""

    def __init__(self, masks: Masks) -> None:
        self.masks = masks

    def before_update(self, step: int) -> None:
        """Drop the gradients of weights that went."""
        del step
        self.masks.apply_to_gradients()

    def after_update(self, step: int, *, moved: bool) -> None:
        """Wipe out what the optimizer wrote where weights went."""
        del step, moved
        self.masks.apply()

    def state_dict(self) -> PartState:
        """The masks themselves, which a load writes into."""
        return PartState(placed={f"mask/{name}": one for name, one in self.masks.by_name.items()})


class GradualPruning(MaskedTraining):
    """Weights that go little by little, as `[pruning]` of a recipe says."""

    name = "pruning"

    def __init__(self, masks: Masks, wanted: RecipePruning) -> None:
        """Begin with all weights.

        Raises:
            InputError: The model has a layer that cannot have the pattern.
        """
        super().__init__(masks)
        self._wanted = wanted
        if wanted.pattern is not None:
            masks.check_pattern(*wanted.pattern)

    @classmethod
    def make(cls, filled: FilledModel) -> GradualPruning | None:
        """`[pruning]` of the recipe."""
        wanted = filled.recipe.pruning
        return cls(masks_of(filled), wanted) if wanted else None

    def before_step(self, step: int) -> str:
        """Choose weights if it is time; what the log is to say of it. Every rank calls it."""
        wanted = self._wanted
        if not chooses_at(step, wanted):
            return ""
        gone = share_at(step, wanted)
        if not gone:
            return ""
        if wanted.pattern is None:
            assert wanted.share is not None
            self.masks.choose(gone * wanted.share)
            return f"pruned to {gone * wanted.share:.1%} zeros"
        n, m = wanted.pattern
        kept = m - round(gone * (m - n))
        if kept == m:
            return ""
        self.masks.choose(0.0, (kept, m))
        return f"pruned to {kept}:{m}"


def masks_of(filled: FilledModel) -> Masks:
    """Masks of a filled model and of all that follows its weights."""
    return Masks(
        filled.modules,
        [part.shadows() for part in filled.parts],
        every_layer=filled.recipe.images is not None,
    )


def _matrices(part: nn.Module, *, every_layer: bool) -> Iterator[tuple[nn.Parameter, bool]]:
    """Weights of the linear layers in the blocks, and whether they are kept as [in, out].

    With `every_layer`, those of all convolutions and linear layers but the last, the head of an
    image classifier.
    """
    if every_layer:
        layers = [one for one in part.modules() if isinstance(one, nn.Conv2d | nn.Linear)]
        yield from ((one.weight, False) for one in layers[:-1])
        return
    for block in require_blocks(part, "pruning"):
        for module in block.modules():
            if is_linear(module):
                yield module.weight, is_transposed(module)
