"""An exponential moving average of the weights, kept shard by shard.

    a ← d a + (1-d) θ      Polyak averaging with a horizon of 1/(1-d) steps

Each rank averages what it holds; nothing travels. Averages are fp32 whatever the weights are: a
step of 1-d = 1e-3 is lost in bf16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from ridgeline.train.optimizers.build import named_parameters
from ridgeline.train.optimizers.shards import local
from ridgeline.train.part import FilledModel, Part, PartState


class WeightAverage(Part):
    """The average of every trainable parameter.

    Args:
        modules: What this rank holds of the model; its weights start the average.
        decay: d, between 0 and 1.
    """

    name = "average"

    def __init__(self, modules: Sequence[nn.Module], decay: float) -> None:
        self._decay = decay
        self._names: list[str] = []
        self._parameters: list[nn.Parameter] = []
        for name, parameter in named_parameters(modules):
            if parameter.requires_grad:
                self._names.append(name)
                self._parameters.append(parameter)
        self._averages: list[Tensor] = [
            parameter.detach().to(torch.float32, copy=True) for parameter in self._parameters
        ]

    @classmethod
    def make(cls, filled: FilledModel) -> WeightAverage | None:
        """`optimizer.ema` of the recipe."""
        decay = filled.recipe.optimizer.ema
        return cls(filled.modules, decay) if decay else None

    def after_update(self, step: int, *, moved: bool) -> None:
        """Follow the weights wherever the optimizer moved them."""
        del step
        if moved:
            self.update()

    def around_evaluation(self) -> AbstractContextManager[None]:
        """Evaluate the averaged weights."""
        return self.swapped_in()

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the weights; after each optimizer step that was not skipped."""
        averages = [local(average) for average in self._averages]
        weights = [local(p).to(torch.float32) for p in self._parameters]
        torch._foreach_lerp_(averages, weights, 1.0 - self._decay)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the model's weights are the average; then they are its own again, bit for bit."""
        own = [local(parameter).detach().clone() for parameter in self._parameters]
        self._write(self._averages)
        try:
            yield
        finally:
            self._write(own)

    def shadows(self) -> Mapping[str, Tensor]:
        """Averages by the parameter's name, DTensors where the parameter is one."""
        return dict(zip(self._names, self._averages, strict=True))

    def state_dict(self) -> PartState:
        """The averages themselves, which a load writes into."""
        return PartState(placed=dict(self.shadows()))

    @torch.no_grad()
    def _write(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            local(parameter).copy_(local(value))
