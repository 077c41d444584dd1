"""The model of a recipe: a Hugging Face causal language model, empty, and how it is filled.

    skeleton   every parameter on the meta device, buffers real
    …          adapter, pipeline cut, experts, tensor parallelism, sharding: all on meta
    fill       each parameter made whole once, on this rank alone, and only its shard kept

Where a weight comes from depends on its name alone (`weights.py`), so every layout starts from
the same bits and no rank ever holds more than one whole tensor beyond its own shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ridgeline.checkpoints.names import original_name
from ridgeline.checkpoints.skeleton import empty_model
from ridgeline.errors import InputError, in_words
from ridgeline.models import load_model
from ridgeline.models.presets import known_presets
from ridgeline.records.input_file import read_json
from ridgeline.records.recipe import Recipe, RecipeModel
from ridgeline.train.ranks import Ranks
from ridgeline.train.weights import Weights, open_weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""What `precision.weights` calls them."""


def hf_config(model: RecipeModel) -> PretrainedConfig:
    """The configuration that a recipe names: of a preset, a file or a folder.

    Raises:
        InputError: There is none, or it is of no causal language model that transformers has.
    """
    spec = load_model(model.config)
    if not spec.is_causal_language_model:
        raise InputError(
            f"model.config {model.config!r} is of kind {spec.kind!r}; `ridgeline train` trains"
            " causal language models, such as llama3-8b or gpt2"
        )
    values = _config_values(model.config)
    kind = values.pop("model_type", "")
    try:
        config = AutoConfig.for_model(kind, **values)
    except Exception as error:  # a configuration can be wrong in any way
        raise InputError(f"model.config {model.config!r}: {in_words(error)}") from None
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise InputError(
            f"model.config {model.config!r}: transformers has no causal language model of type"
            f" {kind!r}"
        )
    config.use_cache = False
    return config


def skeleton(recipe: Recipe) -> PreTrainedModel:
    """The recipe's model without weights: parameters on the meta device, buffers on the host.

    A script's model, which an image recipe may have, is whole.
    """
    if recipe.images is not None:
        from ridgeline.train.images.model import image_skeleton

        return image_skeleton(recipe, DTYPES[recipe.precision.weights])
    config = hf_config(recipe.model)
    model: PreTrainedModel = empty_model(
        config, dtype=DTYPES[recipe.precision.weights], attention=recipe.model.attention
    )
    return model.train()


def fill(modules: Sequence[nn.Module], recipe: Recipe, ranks: Ranks) -> None:
    """Give every parameter that is still on the meta device its value.

    Names within the modules must be those of `skeleton`, but for what wrappers add. What an adapter
    adds starts by `adapters.initial_weight`.
    """
    if recipe.model.script:
        for part in modules:
            part.to(ranks.device)
        return
    device = torch.device("cpu") if recipe.layout.on_host else ranks.device
    weights = open_weights(skeleton(recipe), recipe, ranks.device)
    for part in modules:
        empty = [name for name, parameter in part.named_parameters() if parameter.is_meta]
        _materialise(part, device, ranks.device)
        parameters = dict(part.named_parameters())
        _fill_in_turn(part, {name: parameters[name] for name in empty}, weights)
    if recipe.images is not None:
        from ridgeline.train.images.model import load_buffers

        load_buffers(modules, recipe)


@torch.no_grad()
def _fill_in_turn(part: nn.Module, parameters: dict[str, nn.Parameter], weights: Weights) -> None:
    added = {name for name in parameters if original_name(name) not in weights.names()}
    if added:
        from ridgeline.train.adapters import initial_weight
    for name, parameter in parameters.items():
        if name in added:
            full = initial_weight(part, name, weights)
        else:
            full = weights.full(original_name(name))
        if full.shape != parameter.shape:
            raise InputError(
                f"{weights.place}: {original_name(name)} is of shape {tuple(full.shape)}; the"
                f" configuration wants {tuple(parameter.shape)}; give the checkpoint's own"
                " config.json"
            )
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter.data
        local.copy_(shard_of(full, parameter))


def shard_of(full: Tensor, parameter: Tensor) -> Tensor:
    """The part of a whole tensor that this rank keeps of `parameter`: no communication.

    FSDP2 over tensor parallelism cuts a dimension from right to left, which DTensor writes as
    `_StridedShard` on the left axis; alone, it cuts each of its groups (fused gate and up).
    """
    if not isinstance(parameter, DTensor):
        return full
    axes = list(enumerate(parameter.placements))
    if any(_cut_again_to_the_right(parameter.placements, axis) for axis, _ in axes):
        axes.reverse()
    for axis, placement in axes:
        size = parameter.device_mesh.size(axis)
        place = parameter.device_mesh.get_local_rank(axis)
        if isinstance(placement, _StridedShard) and not _cut_again_to_the_right(
            parameter.placements, axis
        ):
            groups = full.chunk(placement.split_factor, dim=placement.dim)
            full = torch.cat(
                [_piece(group, placement.dim, size, place) for group in groups], dim=placement.dim
            )
        elif isinstance(placement, Shard | _StridedShard):
            full = _piece(full, placement.dim, size, place)
    return full


def _cut_again_to_the_right(placements: Sequence[Placement], axis: int) -> bool:
    here = placements[axis]
    return isinstance(here, _StridedShard) and any(
        isinstance(other, Shard | _StridedShard) and other.dim == here.dim
        for other in placements[axis + 1 :]
    )


def _piece(tensor: Tensor, dim: int, size: int, place: int) -> Tensor:
    """One of `size` pieces; as torch.chunk cuts, but that the last ones may be empty."""
    length, start = Shard.local_shard_size_and_offset(tensor.shape[dim], size, place)
    return tensor.narrow(dim, min(start, tensor.shape[dim]), length)


def _materialise(part: nn.Module, device: torch.device, buffers: torch.device) -> None:
    """Room for the parameters; buffers, which are real, move to where they are used."""
    for module in part.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if not buffer.is_meta:
                module._buffers[name] = buffer.to(buffers)

    def room(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor

    with _tied_stay_tied(part):
        part._apply(room)


class _tied_stay_tied:  # noqa: N801 - used as a context manager, read as a phrase
    """`_apply` visits a parameter that two modules share twice; the second would come apart."""

    def __init__(self, part: nn.Module) -> None:
        self._groups = [group for group in _shared(part) if len(group) > 1]

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_error: object) -> None:
        for group in self._groups:
            (first, first_name), *others = group
            for module, name in others:
                module._parameters[name] = first._parameters[first_name]


def _shared(part: nn.Module) -> Iterator[list[tuple[nn.Module, str]]]:
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in part.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append((module, name))
    yield from owners.values()


def _config_values(name_or_path: str) -> dict[str, object]:
    """The keys of the config.json that `load_model` would read."""
    path = Path(name_or_path).expanduser()
    if "=" in name_or_path and not path.exists():
        raise InputError(
            f"model.config {name_or_path!r}: sizes say nothing of the architecture that is trained;"
            " write them into a config.json with its model_type, such as llama, and give that"
        )
    bare = "/" not in name_or_path and not name_or_path.endswith(".json")
    if bare and (known_presets().names.get(name_or_path) is not None or not path.exists()):
        return dict(known_presets().presets[known_presets().names.find(name_or_path)].config)
    file = path / "config.json" if path.is_dir() else path
    return read_json(file, dict[str, object])
