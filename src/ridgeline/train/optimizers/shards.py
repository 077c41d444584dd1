"""An optimizer on what this rank holds of every parameter.

torch's own optimizers take DTensors, but refuse one list with DTensors of several meshes (experts,
tensor parallelism and sharding together), and pay DTensor's dispatch for every operation. An
element-wise rule needs neither: it is right on any shard. So a rule here sees local tensors, and
its state is kept as tensors like the parameter, DTensors where that is one, so that
`torch.distributed.checkpoint` saves it and loads it on another number of ranks.

bf16 weights can be rounded up or down by chance (`Rounding`): the mean of many roundings is then
the exact update, where rounding to nearest loses every update below half a unit in the last place
(Zamirai et al., "Revisiting BFloat16 training", arXiv 2010.06192, section 3).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from ridgeline.train.optimizers.on_disk import DiskState

Group = dict[str, Any]


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor: itself, or a DTensor's shard."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def zeros_for(parameter: Tensor) -> Tensor:
    """State of the parameter's own shape, dtype and placement."""
    return torch.zeros_like(parameter, memory_format=torch.preserve_format)


def shard_key(parameter: Tensor) -> int:
    """Equal on ranks that hold the same elements of a parameter, else different."""
    if not isinstance(parameter, DTensor):
        return 0
    mesh = parameter.device_mesh
    key = 0
    for axis, placement in enumerate(parameter.placements):
        if not isinstance(placement, Replicate):
            key = key * mesh.size(axis) + mesh.get_local_rank(axis)
    return key


class Rounding:
    """Rounds fp32 to bf16 by chance; ranks that hold the same elements draw the same numbers."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, wide: Tensor, narrow: Tensor, key: Sequence[int]) -> None:
        """Write `wide` into `narrow`; the same key gives the same draw."""
        generator = torch.Generator(device=wide.device)
        generator.manual_seed(_mixed((self._seed, *key)))
        chance = torch.randint(
            0, 1 << 16, wide.shape, dtype=torch.int32, device=wide.device, generator=generator
        )
        # Adding 16 random bits below bf16's last one carries into it with the probability of the
        # fraction that is then cut off. Infinity and NaN keep their bits.
        bits = wide.view(torch.int32)
        rounded = ((bits + chance) & -(1 << 16)).view(torch.float32)
        narrow.copy_(torch.where(wide.isfinite(), rounded, wide))


class ShardedOptimizer(torch.optim.Optimizer):
    """The frame of the rules in this folder.

    Args:
        groups: As `torch.optim.Optimizer` takes them.
        defaults: Of the groups' settings.
        rounding: How updates of bf16 weights are rounded; None: to nearest.
    """

    def __init__(
        self, groups: Iterable[Group], defaults: Group, rounding: Rounding | None = None
    ) -> None:
        super().__init__(groups, {**defaults, "updates": 0})
        self._rounding = rounding
        self._places: dict[Tensor, int] = {}
        """Of the parameters of the group that is updated, their places in it."""
        self.on_disk: DiskState | None = None
        """Where the state lies between steps; None: in memory."""

    def keep_on_disk(self, folder: Path, device: torch.device) -> DiskState:
        """Keep the state in a file of `folder` from the first step on.

        Raises:
            InputError: The folder cannot take it.
        """
        wanted = [(group["params"], self.tensors_kept(group)) for group in self.param_groups]
        self.on_disk = DiskState(folder, wanted, device)
        return self.on_disk

    @abstractmethod
    def tensors_kept(self, group: Group) -> int:
        """Tensors like a parameter that the rule keeps of each; 0: what it keeps is smaller."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, group in enumerate(self.param_groups):
            group["updates"] += 1
            self._places = {p: place for place, p in enumerate(group["params"])}
            if self.on_disk is None:
                self._update_some(group, group["params"])
                continue
            portions = self.on_disk.portions(number)
            for portion in self.on_disk.at_hand(portions, self.state):
                self._update_some(group, portion.parameters)
        return loss

    def _update_some(self, group: Group, some: Sequence[nn.Parameter]) -> None:
        parameters = [p for p in some if p.grad is not None]
        if parameters:
            self.update(group, parameters, [_gradient(p) for p in parameters])

    @abstractmethod
    def update(self, group: Group, parameters: list[nn.Parameter], gradients: list[Tensor]) -> None:
        """Apply the rule to one group; the gradients are local and placed as the parameters."""

    def batches(
        self, group: Group, parameters: list[nn.Parameter]
    ) -> Iterator[tuple[slice, list[Tensor]]]:
        """Local weights to update in place, with their places in the list.

        All at once; one at a time, in fp32, where bf16 weights are rounded by chance.
        """
        if self._rounding is None:
            yield slice(None), [local(parameter) for parameter in parameters]
            return
        for index, parameter in enumerate(parameters):
            with self.wide(group, parameter) as weight:
                yield slice(index, index + 1), [weight]

    @contextmanager
    def wide(self, group: Group, parameter: Tensor) -> Iterator[Tensor]:
        """The local weight to update in place; an fp32 copy that is rounded back by chance."""
        weight = local(parameter)
        if self._rounding is None or weight.dtype is not torch.bfloat16:
            yield weight
            return
        copy = weight.float()
        yield copy
        place = self._places[parameter]
        self._rounding(copy, weight, (group["updates"], place, shard_key(parameter)))


def _gradient(parameter: Tensor) -> Tensor:
    """The local gradient, placed as the parameter (tensor parallelism may leave it unsummed)."""
    gradient = parameter.grad
    assert gradient is not None
    if (
        isinstance(parameter, DTensor)
        and isinstance(gradient, DTensor)
        and gradient.placements != parameter.placements
    ):
        gradient = gradient.redistribute(placements=parameter.placements)
    return local(gradient)


def _mixed(key: Iterable[int]) -> int:
    """One seed of 63 bits from several numbers (the multiplier is Knuth's MMIX generator's)."""
    seed = 0
    for number in key:
        seed = (seed ^ number) * 6364136223846793005 + 1442695040888963407
    return (seed >> 1) & (2**63 - 1)
