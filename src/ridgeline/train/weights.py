"""Whole weights of a model, one tensor at a time, by name: made at random, or read from files.

Random ones follow the model's own rule (transformers' `_init_weights`), from a seed that depends
on the recipe's seed and the name of the module that owns them, never on order or on ranks.

Those of a checkpoint are made by transformers' own conversions (`checkpoints/names.py`), applied to
the tensors of one target at a time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Collection
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import WeightRenaming, WeightTransform, dot_natural_key

from ridgeline.checkpoints.files import StoredTensors
from ridgeline.checkpoints.names import StoredNames, first_names
from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe


class Weights(Protocol):
    """Where the weights of a model come from."""

    place: str
    """The name that error messages give."""

    def names(self) -> Collection[str]:
        """Every parameter that there is, tied ones under each of their names."""

    def full(self, name: str) -> Tensor:
        """The whole tensor, on the device that was asked for."""


def open_weights(model: PreTrainedModel, recipe: Recipe, device: torch.device) -> Weights:
    """The recipe's source of weights for a skeleton."""
    if recipe.model.checkpoint:
        return CheckpointWeights(model, Path(recipe.model.checkpoint).expanduser(), device)
    return RandomWeights(model, recipe.run.seed, device)


class RandomWeights:
    """Values by the model's own rule, from a seed per module."""

    place = "random weights"

    def __init__(self, model: PreTrainedModel, seed: int, device: torch.device) -> None:
        self._model = model
        self._seed = seed
        self._device = device
        self._names = dict(model.named_parameters(remove_duplicate=False))
        self._tied = first_names(model)

    def names(self) -> Collection[str]:
        """The names, as `Weights.names` says."""
        return self._names.keys()

    @torch.no_grad()
    def full(self, name: str) -> Tensor:
        """The whole tensor, as `Weights.full` says."""
        name = self._tied[name]
        owner, _, own = name.rpartition(".")
        module = self._model.get_submodule(owner)
        with _real_parameters(module, self._device), _seeded(self._seed, owner, self._device):
            # A block's rule may overwrite its children's (GPT-2 scales what ends in the residual
            # stream), so rules run from the module itself outwards.
            while True:
                self._rule_of(owner)(self._model.get_submodule(owner))
                if not owner:
                    break
                owner = owner.rpartition(".")[0]
            parameter: Tensor = module._parameters[own].data  # type: ignore[union-attr]
        return parameter

    def _rule_of(self, owner: str) -> Any:
        """`_init_weights` of the innermost model around a module."""
        while True:
            module = self._model.get_submodule(owner)
            if isinstance(module, PreTrainedModel):
                return module._init_weights
            owner = owner.rpartition(".")[0]


class CheckpointWeights:
    """Tensors of safetensors files, in the shape that the model class wants them."""

    def __init__(self, model: PreTrainedModel, folder: Path, device: torch.device) -> None:
        self.place = str(folder)
        self._model = model
        self._device = device
        self._tied = first_names(model)
        self._tensors = StoredTensors(folder)
        self._sources = self._targets()
        self._split: dict[str, Tensor] = {}
        missing = sorted(
            name for name in set(self._tied.values()) if self._source_name(name) is None
        )
        if missing:
            if f"{missing[0]}_scale" in self._tensors:
                raise InputError(
                    f"{folder}: its weights are compressed, and training changes whole ones; give"
                    " the model that it was made from"
                )
            raise InputError(
                f"{folder}: has no weight for {missing[0]}"
                f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}; give a checkpoint"
                f" of {type(model).__name__}"
            )

    def names(self) -> Collection[str]:
        """The names, as `Weights.names` says."""
        return self._tied.keys()

    def full(self, name: str) -> Tensor:
        """The whole tensor, as `Weights.full` says."""
        if name in self._split:
            return self._split.pop(name)
        source = self._source_name(name)
        if source is None:
            raise InputError(f"{self.place}: has no weight for {name}")
        transform = deepcopy(self._sources[source][0])
        for key, pattern in self._sources[source][1]:
            transform.add_tensor(source, key, pattern, functools.partial(self._tensors.read, key))
        made = transform.convert(source, model=self._model, config=self._model.config)
        tensors = {
            key: (value[0] if isinstance(value, list) else value) for key, value in made.items()
        }
        whole = tensors.pop(source if name not in tensors else name)
        # What one stored tensor splits into is asked for next; it must not be read again.
        self._split = tensors
        return whole.to(self._device)

    def _source_name(self, name: str) -> str | None:
        """Under which of a tied weight's names, or of a split's first target, it is stored."""
        alike = [other for other, first in self._tied.items() if first == self._tied[name]]
        return next(
            (other for other in alike if other in self._sources), self._first_of_split(name)
        )

    def _first_of_split(self, name: str) -> str | None:
        """The target under which transformers groups a stored tensor that makes several."""
        for source, (transform, _) in self._sources.items():
            first, *others = transform.target_patterns
            if any(source.replace(first, other) == name for other in others if first in source):
                return source
        return None

    def _targets(self) -> dict[str, tuple[WeightTransform, list[tuple[str, str]]]]:
        """How each parameter is made, and of which stored tensors (with their pattern)."""
        stored = StoredNames(self._model)
        found: dict[str, tuple[WeightTransform, list[tuple[str, str]]]] = {}
        for key in sorted(self._tensors.names, key=dot_natural_key):
            target, pattern = stored.target(key) or (None, None)
            if target is None:
                continue
            if pattern is None:
                found[target] = (WeightRenaming(key, target), [(key, key)])
            else:
                entry = found.setdefault(target, (stored.converter_of[pattern], []))
                entry[1].append((key, pattern))
        return found


@contextlib.contextmanager
def _real_parameters(module: nn.Module, device: torch.device) -> Any:
    """A module's own parameters in fp32 on a device; on leaving, as they were."""
    kept = dict(module._parameters)
    for name, parameter in kept.items():
        if parameter is not None:
            module._parameters[name] = nn.Parameter(
                torch.empty(parameter.shape, device=device), requires_grad=False
            )
    try:
        yield
    finally:
        module._parameters.update(kept)


@contextlib.contextmanager
def _seeded(seed: int, name: str, device: torch.device) -> Any:
    """Torch's own generators, as transformers' rules use them, from a seed of this name."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        number = int.from_bytes(digest[:8], "big") >> 1
        if device.type == "cpu":
            torch.default_generator.manual_seed(number)  # torch.manual_seed takes ten times as long
        else:
            torch.manual_seed(number)
        yield
