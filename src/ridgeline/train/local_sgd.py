"""Ranks that train alone between agreements: local SGD and DiLoCo.

Every `sync_every` optimizer steps, with θ what all ranks last agreed on and θᵢ what rank i made of
it since:

    average   θ ← mean θᵢ                       Stich, arXiv 1805.09767, algorithm 1
    diloco    Δ = θ - mean θᵢ is the gradient of an outer SGD with Nesterov momentum
                                                Douillard et al., arXiv 2311.08105, algorithm 1

Inner optimizers keep their own moments, as there. Gradients are not exchanged: the model stands
without DistributedDataParallel, and each rank's loss is the mean over its own targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe
from ridgeline.train.compression.counted import CountedGroup, Traffic
from ridgeline.train.part import FilledModel, Part, PartState
from ridgeline.train.ranks import Ranks


class LocalSgd(Part):
    """The agreements of one run between ranks that train alone."""

    name = "local_sgd"
    ranks_alone = True

    def __init__(
        self,
        modules: Sequence[nn.Module],
        recipe: Recipe,
        ranks: Ranks,
        phase: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        """Around the filled model; all ranks hold the same weights.

        Raises:
            InputError: The layout has ranks that cannot train alone.
        """
        _check(recipe)
        settings = recipe.communication
        self._every = settings.sync_every
        self._counted = CountedGroup(ranks.group("data"))
        self._message_bytes = settings.bucket_bytes
        self._weights = [
            parameter.detach()
            for module in modules
            for parameter in module.parameters()
            if parameter.requires_grad
        ]
        self._outer: torch.optim.SGD | None = None
        self._agreed: list[Tensor] = []
        if settings.outer == "diloco":
            self._agreed = [weight.detach().float().clone() for weight in self._weights]
            self._outer = torch.optim.SGD(
                self._agreed,
                lr=settings.outer_learning_rate,
                momentum=settings.outer_momentum,
                nesterov=settings.outer_momentum > 0,
            )
        self._alone = 0
        self._phase = phase
        self._device = ranks.device

    @classmethod
    def make(cls, filled: FilledModel) -> LocalSgd | None:
        """`communication.sync_every` of the recipe, above 1."""
        recipe = filled.recipe
        if recipe.communication.sync_every <= 1:
            return None
        return cls(filled.modules, recipe, filled.ranks, filled.phases.phase)

    def after_update(self, step: int, *, moved: bool) -> None:
        """Agree if it is time."""
        del step, moved
        with self._phase("communication"):
            self.after_step()

    def finish(self) -> None:
        """Agree for the last time."""
        self.agree()

    def figures(self, steps: int, phases_by_rank: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        """Bytes that this rank sent in a step."""
        del phases_by_rank
        return {"bytes_sent": self.take().sent_bytes / steps}

    def after_step(self) -> bool:
        """Agree if it is time; whether the ranks now hold the same weights."""
        self._alone += 1
        if self._alone < self._every:
            return False
        self.agree()
        return True

    @torch.no_grad()
    def agree(self) -> None:
        """Agree now, as at the end of a run; nothing happens if the last time was just now."""
        if not self._alone:
            return
        for places in self._messages():
            mean = torch.cat([self._weights[place].float().reshape(-1) for place in places])
            self._counted.all_reduce(mean)
            mean /= self._counted.size
            sizes = [self._weights[place].numel() for place in places]
            for place, part in zip(places, mean.split(sizes), strict=True):
                self._take_mean(place, part.view_as(self._weights[place]))
        if self._outer is not None:
            self._outer.step()
            self._outer.zero_grad()
            for weight, agreed in zip(self._weights, self._agreed, strict=True):
                weight.copy_(agreed)
        self._alone = 0

    def take(self) -> Traffic:
        """What this rank sent since the last call."""
        return self._counted.take()

    def state_dict(self) -> PartState:
        """What was agreed last and the outer momentum, beside each rank's own weights."""
        private = {f"agreed/{place}": agreed.clone() for place, agreed in enumerate(self._agreed)}
        outer = self._outer.state_dict()["state"] if self._outer else {}
        for place, of_one in outer.items():
            if of_one.get("momentum_buffer") is not None:
                private[f"momentum/{place}"] = of_one["momentum_buffer"].clone()
        return PartState(private=private, own={"alone": self._alone})

    @torch.no_grad()
    def load_state_dict(self, state: PartState, *, same_ranks: bool = True) -> None:
        """Go on from there; a new rank takes the place of an old one."""
        del same_ranks
        saved = [key for key in state.private if key.startswith("agreed/")]
        if len(saved) != len(self._agreed):
            raise InputError(
                f"the saved run agreed on {len(saved)} parameters and this one has"
                f" {len(self._agreed)}; resume with the same model and communication.outer"
            )
        self._alone = state.own["alone"]
        for place, agreed in enumerate(self._agreed):
            agreed.copy_(state.private[f"agreed/{place}"])
        if self._outer:
            momenta = {
                int(key.removeprefix("momentum/")): {"momentum_buffer": tensor.to(self._device)}
                for key, tensor in state.private.items()
                if key.startswith("momentum/")
            }
            self._outer.load_state_dict(self._outer.state_dict() | {"state": momenta})

    def _take_mean(self, place: int, mean: Tensor) -> None:
        if self._outer is None:
            self._weights[place].copy_(mean)
        else:
            self._agreed[place].grad = self._agreed[place] - mean

    def _messages(self) -> Iterator[list[int]]:
        """Places of weights that travel together."""
        places: list[int] = []
        size = 0
        for place, weight in enumerate(self._weights):
            places.append(place)
            size += weight.numel() * torch.float32.itemsize
            if size >= self._message_bytes:
                yield places
                places, size = [], 0
        if places:
            yield places


def _check(recipe: Recipe) -> None:
    layout, settings = recipe.layout, recipe.communication
    if settings.sync_every < 1:
        raise InputError(f"communication.sync_every is {settings.sync_every}; it must be 1 or more")
    others = {"zero": layout.zero, "tp": layout.tp, "pp": layout.pp, "cp": layout.cp}
    set_ones = [f"{name} {size}" for name, size in others.items() if size > (name != "zero")]
    if set_ones or layout.ep > 1:
        raise InputError(
            "communication.sync_every above 1 leaves every rank to itself with the whole model;"
            f" layout has {', '.join(set_ones) or f'ep {layout.ep}'} beside it: use dp alone, or"
            " sync_every 1"
        )
    if settings.compression != "none" or settings.hierarchical:
        raise InputError(
            "communication: sync_every above 1 exchanges weights, not gradients; leave compression"
            " and hierarchical out"
        )
