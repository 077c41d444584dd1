"""Whole weights of a model, one tensor at a time, by name: made at random, or read from files.

Random ones follow the model's own rule (transformers' `_init_weights`), from a seed that depends
on the recipe's seed and the name of the module that owns them, never on order or on ranks.

A checkpoint is a folder of safetensors. transformers 5 keeps some weights otherwise than hub
checkpoints do (experts fused into one tensor, renamed prefixes); its own conversions say how, and
are applied to the tensors of one target at a time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Collection
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    dot_natural_key,
    rename_source_key,
)

from ridgeline.errors import InputError
from ridgeline.records.input_file import read_json
from ridgeline.records.recipe import Recipe


class Weights(Protocol):
    """Where the weights of a model come from."""

    place: str
    """Named in complaints."""

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
        self._tied = _first_names(model)

    def names(self) -> Collection[str]:
        """See `Weights.names`."""
        return self._names.keys()

    @torch.no_grad()
    def full(self, name: str) -> Tensor:
        """See `Weights.full`."""
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
        self._tied = _first_names(model)
        self._files = _tensor_files(folder)
        self._sources = self._targets()
        self._split: dict[str, Tensor] = {}
        missing = sorted(
            name for name in set(self._tied.values()) if self._source_name(name) is None
        )
        if missing:
            if f"{missing[0]}_scale" in self._files:
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
        """See `Weights.names`."""
        return self._tied.keys()

    def full(self, name: str) -> Tensor:
        """See `Weights.full`."""
        if name in self._split:
            return self._split.pop(name)
        source = self._source_name(name)
        if source is None:
            raise InputError(f"{self.place}: has no weight for {name}")
        transform = deepcopy(self._sources[source][0])
        for key, pattern in self._sources[source][1]:
            transform.add_tensor(source, key, pattern, self._reader(key))
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
        """For each parameter: how it is made, and of which stored tensors (with their pattern)."""
        transforms = get_model_conversion_mapping(self._model)
        renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
        converters = [one for one in transforms if isinstance(one, WeightConverter)]
        by_pattern = {key: one for one in converters for key in one.source_patterns}
        wanted = self._model.state_dict()
        prefix = self._model.base_model_prefix
        found: dict[str, tuple[WeightTransform, list[tuple[str, str]]]] = {}
        for key in sorted(self._files, key=dot_natural_key):
            target, pattern = rename_source_key(key, renamings, converters, prefix, wanted)
            if target not in wanted and key in wanted:
                target, pattern = rename_source_key(key, [], [], prefix, wanted)
            if target not in wanted:
                continue
            if pattern is None:
                found[target] = (WeightRenaming(key, target), [(key, key)])
            else:
                entry = found.setdefault(target, (by_pattern[pattern], []))
                entry[1].append((key, pattern))
        return found

    def _reader(self, key: str) -> Any:
        return functools.partial(_read, self._files[key], key)


def _read(file: Path, key: str) -> Tensor:
    try:
        with safe_open(file, framework="pt") as opened:
            return opened.get_tensor(key)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file}: {error}; copy the checkpoint again") from None


class _Index(msgspec.Struct):
    """What is read of a model.safetensors.index.json."""

    weight_map: dict[str, str]


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Where each stored tensor is: by the index, or in the one file that there is."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    try:
        if index.exists():
            listed = read_json(index, _Index, cure="copy the checkpoint again").weight_map
            return {key: folder / file for key, file in listed.items()}
        with safe_open(single, framework="pt") as opened:
            return dict.fromkeys(opened.keys(), single)
    except FileNotFoundError:
        raise InputError(
            f"model.checkpoint {folder}: holds neither model.safetensors nor its index; give the"
            " folder that save_pretrained wrote"
        ) from None
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder}: {error}; copy the checkpoint again") from None


def _first_names(model: nn.Module) -> dict[str, str]:
    """Each parameter's name, and the first name that the same parameter has."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(parameter), name)
    return names


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
        torch.manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        yield
