"""Where a decoder block keeps its neurons and heads, and how linear layers are cut."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, TypeVar

import msgspec
import torch
from torch import Tensor, nn

from ridgeline.checkpoints.layers import is_linear, is_transposed
from ridgeline.errors import InputError


class MlpPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an MLP is: neurons are the rows of `inner` and the columns of `outer`."""

    families: str
    inner: tuple[str, ...]
    """Up, or gate and up."""
    outer: str
    width_key: str
    """The key of its width in config.json."""


class AttentionPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attention with a matrix each for queries, keys and values: heads are groups of rows."""

    families: str
    owner: str
    query: str
    keys_values: tuple[str, str]
    output: str


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mlp: tuple[MlpPlace, ...]
    attention: tuple[AttentionPlace, ...]


Place = TypeVar("Place", MlpPlace, AttentionPlace)


def mlp_of(block: nn.Module) -> MlpPlace:
    """Where its neurons are.

    Raises:
        InputError: Nowhere that we know.
    """
    places = _table().mlp
    found = [p for p in places if all(_linear(block, name) for name in (*p.inner, p.outer))]
    return _first(found, block, "an MLP whose neurons", places)


def attention_of(block: nn.Module) -> AttentionPlace:
    """Where its heads are.

    Raises:
        InputError: Nowhere that we know.
    """
    places = _table().attention
    found = [
        place
        for place in places
        if all(
            _linear(block, f"{place.owner}.{name}")
            for name in (place.query, *place.keys_values, place.output)
        )
    ]
    return _first(found, block, "attention whose heads", places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What a linear layer keeps."""

    linear: str
    """Its name within the block."""
    side: Literal["outputs", "inputs"]
    kept: Tensor
    """The indices that stay, in order."""


def stored_cuts(block: nn.Module, cut: Cut) -> dict[str, int]:
    """Parameters of a block that a cut shortens, by name, and along which dimension."""
    module: Any = block.get_submodule(cut.linear)
    outputs = cut.side == "outputs"
    found = {f"{cut.linear}.weight": int(outputs == is_transposed(module))}
    if outputs and module.bias is not None:
        found[f"{cut.linear}.bias"] = 0
    return found


@torch.no_grad()
def shorten(block: nn.Module, cuts: Sequence[Cut]) -> None:
    """Carry cuts out on a block in memory, so that what follows sees what it will be."""
    for cut in cuts:
        module: Any = block.get_submodule(cut.linear)
        for name, dim in stored_cuts(block, cut).items():
            leaf = name.rpartition(".")[2]
            tensor = module._parameters[leaf]
            kept = tensor.index_select(dim, cut.kept.to(tensor.device))
            module._parameters[leaf] = nn.Parameter(kept, requires_grad=False)
        of_turned = {"outputs": "nf", "inputs": "nx"}
        of_linear = {"outputs": "out_features", "inputs": "in_features"}
        setattr(
            module, (of_turned if is_transposed(module) else of_linear)[cut.side], len(cut.kept)
        )


def _linear(block: nn.Module, name: str) -> bool:
    try:
        module = block.get_submodule(name)
    except AttributeError:
        return False
    return is_linear(module)


def _first(found: list[Place], block: nn.Module, what: str, places: tuple[Place, ...]) -> Place:
    if found:
        return found[0]
    known = ", ".join(place.families for place in places)
    raise InputError(
        f"{type(block).__name__} has no {what} we know how to prune; known are {known}. Weights"
        " and layers can be pruned in any model"
    )


@functools.cache
def _table() -> _Table:
    text = resources.files(__package__).joinpath("places.toml").read_bytes()
    return msgspec.toml.decode(text, type=_Table)
