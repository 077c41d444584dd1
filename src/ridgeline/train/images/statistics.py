"""What batch norms remember: kept in checkpoints, averaged over ranks, and taken over all of them.

Each rank's running mean and variance follow its own images (Ioffe and Szegedy, arXiv 1502.03167,
section 3.1); before images are judged, and at the end, ranks agree on their mean. Running
statistics are linear in what they follow, so it does not matter how often they agree.

With `images.sync_batch_norm` the mean and variance of each batch are those of all data-parallel
ranks: torch's `SyncBatchNorm` on CUDA, the same sums through `torch.distributed` elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from ridgeline.records.recipe import Recipe
from ridgeline.train.part import FilledModel, Part, PartState
from ridgeline.train.ranks import Ranks


def persistent_buffers(modules: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Buffers that a checkpoint has, by their names in the model alone."""
    found: dict[str, Tensor] = {}
    for part in modules:
        saved = part.state_dict(keep_vars=True)
        for name, buffer in part.named_buffers():
            if name in saved:
                found[name.replace("_orig_mod.", "").removeprefix("module.")] = buffer
    return found


class RunningStatistics(Part):
    """The buffers of an image classifier: batch norms' statistics, ranges of activations."""

    name = "running_statistics"

    def __init__(self, modules: Sequence[nn.Module], ranks: Ranks) -> None:
        self._buffers = persistent_buffers(modules)
        self._ranks = ranks

    @classmethod
    def make(cls, filled: FilledModel) -> RunningStatistics | None:
        """Every run on images has them, where the model has buffers."""
        if filled.recipe.images is None:
            return None
        return cls(filled.modules, filled.ranks)

    @staticmethod
    def prepare(module: nn.Module, recipe: Recipe) -> nn.Module:
        """Let batch norms look at all ranks, where the recipe asks."""
        if recipe.images is not None and recipe.images.sync_batch_norm:
            synchronise(module)
        return module

    def around_evaluation(self) -> AbstractContextManager[None]:
        """Agree before images are judged."""
        return self._agreed()

    def finish(self) -> None:
        """Agree on what is saved."""
        self.agree()

    @torch.no_grad()
    def agree(self) -> None:
        """Give every rank the mean of all ranks' statistics."""
        ranks = self._ranks.size("gradients")
        if ranks == 1:
            return
        for buffer in self._buffers.values():
            if buffer.is_floating_point():
                dist.all_reduce(buffer, group=self._ranks.group("gradients"))
                buffer.div_(ranks)

    def state_dict(self) -> PartState:
        """The state of this rank alone: copies, since the next forward pass changes buffers.

        A checkpoint copies the rest while that pass runs, and is through before the update.
        """
        return PartState(
            private={name: one.detach().clone() for name, one in self._buffers.items()}
        )

    @torch.no_grad()
    def load_state_dict(self, state: PartState, *, same_ranks: bool = True) -> None:
        """Go on from there; other ranks than wrote them each take one's."""
        del same_ranks
        for name, saved in state.private.items():
            self._buffers[name].copy_(saved)

    @contextmanager
    def _agreed(self) -> Iterator[None]:
        self.agree()
        yield


class _SumOverRanks(torch.autograd.Function):
    """The sum over all ranks; what its gradient is on one rank, every rank adds to."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor) -> Tensor:
        del ctx
        total = mine.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


class BatchNormOverRanks(_BatchNorm):
    """A batch norm whose mean and variance are those of every rank's batch together."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Normalise [B, channels, …]."""
        if not self.training:
            known = (self.running_mean, self.running_var, self.weight, self.bias)
            return functional.batch_norm(input, *known, eps=self.eps)
        axes = [axis for axis in range(input.ndim) if axis != 1]
        wide = input.float()
        sums = torch.cat([wide.sum(axes), wide.square().sum(axes)])
        count = float(input.numel() // input.shape[1]) * dist.get_world_size()
        mean, square = (_SumOverRanks.apply(sums) / count).chunk(2)
        variance = (square - mean.square()).clamp_min(0.0)
        self._follow(mean.detach(), variance.detach() * count / max(1.0, count - 1.0))
        scale = (variance + self.eps).rsqrt()
        shift = -mean * scale
        if self.affine:
            scale, shift = scale * self.weight, shift * self.weight + self.bias
        shape = [1, -1, *[1] * (input.ndim - 2)]
        return (wide * scale.view(shape) + shift.view(shape)).to(input.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
        momentum = self.momentum
        if momentum is None:
            assert self.num_batches_tracked is not None
            momentum = 1.0 / float(self.num_batches_tracked)
        for running, now in ((self.running_mean, mean), (self.running_var, variance)):
            if running is not None:
                running.lerp_(now.to(running.dtype), momentum)


def synchronise(module: nn.Module) -> None:
    """Let the batch norms of a module look at all ranks, in place; names stay as they are."""
    on_cuda = torch.cuda.is_available()
    for one in module.modules():
        if isinstance(one, _BatchNorm) and not isinstance(one, nn.SyncBatchNorm):
            one.__class__ = nn.SyncBatchNorm if on_cuda else BatchNormOverRanks
            one.process_group = None  # all ranks: a recipe of images has no other axis
