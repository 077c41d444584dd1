"""Forward and backward of every layout without a pipeline: micro-batches one after another.

Data-parallel ranks hold different sequences, so their gradients are summed (`build.py` has the
convention). `sharding.py` makes FSDP2 sum; DDP averages, so its losses are multiplied by the
number of ranks first. Between micro-batches nothing is exchanged where the layout keeps whole
gradients: `no_sync` of DDP, `set_requires_gradient_sync(False)` of ZeRO 1. ZeRO 2 and 3 reduce
each micro-batch's gradients at once and keep this rank's share alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from ridgeline.train.loss import Objective
from ridgeline.train.ranks import Ranks


class PlainPasses:
    """`Passes` of a model that every rank has from end to end."""

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        objective: Objective,
        *,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        scale: Callable[[Tensor], Tensor] = lambda loss: loss,
    ) -> None:
        """Begin with a model that is parallel already.

        Args:
            model: What `sharding.share_gradients` returned.
            ranks: This process's place.
            objective: Sum of token losses of a micro-batch.
            autocast: Entered around each forward pass; FSDP2 casts by itself.
            scale: Applied to what backward starts from (loss scaling of fp16).
        """
        self._model = model
        self._ranks = ranks
        self._objective = objective
        self._autocast = autocast
        self._scale = scale

    @property
    def modules(self) -> Sequence[nn.Module]:
        """The whole model, without DDP around it."""
        if isinstance(self._model, DistributedDataParallel):
            return [self._model.module]
        return [self._model]

    def run(self, batches: Sequence[Any], num_targets: int) -> Tensor:
        """Run micro-batches one after another, as `Passes.run` says."""
        total = torch.zeros((), device=self._ranks.device)
        averaged = isinstance(self._model, DistributedDataParallel)
        share = (self._ranks.size("gradients") if averaged else 1) / max(1, num_targets)
        for place, batch in enumerate(batches):
            with self._exchanging(last=place == len(batches) - 1):
                with self._autocast():
                    loss = self._objective(self._model, batch)
                self._scale(loss * share).backward()
            total += loss.detach()
        return self._over_the_sequence(total)

    def evaluate(self, batch: Any) -> Tensor:
        """Take the loss of one micro-batch, as `Passes.evaluate` says."""
        (model,) = self.modules
        with torch.no_grad(), self._autocast():
            loss = self._objective(model, batch)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                # What forward gathered and backward would have given back; a checkpoint that is
                # written now must find shards.
                module.reshard()
        return self._over_the_sequence(loss.detach())

    def _exchanging(self, *, last: bool) -> AbstractContextManager[object]:
        """Decide whether the backward pass of this micro-batch exchanges gradients."""
        if isinstance(self._model, DistributedDataParallel):
            return nullcontext() if last else self._model.no_sync()
        if isinstance(self._model, FSDPModule):
            zero = self._ranks.layout.zero
            self._model.set_is_last_backward(last)
            self._model.set_requires_gradient_sync(last or zero >= 2)
            self._model.set_reshard_after_backward(last or zero == 3)
        return nullcontext()

    def _over_the_sequence(self, loss: Tensor) -> Tensor:
        """Ranks that share a sequence have the loss of their part of it."""
        if self._ranks.size("cp") > 1:
            dist.all_reduce(loss, group=self._ranks.group("cp"))
        return loss
