"""An exponential moving average of the weights, kept shard by shard.

    a ← d a + (1-d) θ      Polyak averaging with a horizon of 1/(1-d) steps

Each rank averages what it holds; nothing travels. Averages are fp32 whatever the weights are: a
step of 1-d = 1e-3 is lost in bf16. Of an image classifier the running statistics of batch norms are
averaged too: those of the moment belong to the weights of the moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType

import torch
from torch import Tensor, nn

from ridgeline.train.images.statistics import persistent_buffers
from ridgeline.train.optimizers.build import named_parameters
from ridgeline.train.optimizers.shards import local
from ridgeline.train.part import FilledModel, Part, PartState


class WeightAverage(Part):
    """The average of every trainable parameter.

    Args:
        modules: What this rank holds of the model; its weights start the average.
        decay: d, between 0 and 1.
        statistics: Buffers by name that are averaged with them, each rank its own.
    """

    name = "average"

    def __init__(
        self,
        modules: Sequence[nn.Module],
        decay: float,
        statistics: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        self._decay = decay
        self._statistics = {n: one for n, one in statistics.items() if one.is_floating_point()}
        self._mean_statistics = {n: one.detach().clone() for n, one in self._statistics.items()}
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
        if not decay:
            return None
        of_images = filled.recipe.images is not None
        return cls(filled.modules, decay, persistent_buffers(filled.modules) if of_images else {})

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
        for name, mean in self._mean_statistics.items():
            mean.lerp_(self._statistics[name], 1.0 - self._decay)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside, the model's weights are the average; then they are its own again, bit for bit."""
        own = [local(parameter).detach().clone() for parameter in self._parameters]
        statistics = {name: one.detach().clone() for name, one in self._statistics.items()}
        self._write(self._averages, self._mean_statistics)
        try:
            yield
        finally:
            self._write(own, statistics)

    def shadows(self) -> Mapping[str, Tensor]:
        """Averages by the parameter's name, DTensors where the parameter is one."""
        return dict(zip(self._names, self._averages, strict=True))

    def state_dict(self) -> PartState:
        """The averages themselves, which a load writes into."""
        return PartState(placed=dict(self.shadows()), private=dict(self._mean_statistics))

    @torch.no_grad()
    def load_state_dict(self, state: PartState, *, same_ranks: bool = True) -> None:
        """Take over the averaged statistics; the weights' averages were loaded in place."""
        del same_ranks
        for name, saved in state.private.items():
            self._mean_statistics[name].copy_(saved)

    @torch.no_grad()
    def _write(self, values: Sequence[Tensor], statistics: Mapping[str, Tensor]) -> None:
        for name, one in statistics.items():
            self._statistics[name].copy_(one)
        for parameter, value in zip(self._parameters, values, strict=True):
            local(parameter).copy_(local(value))
