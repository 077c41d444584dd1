"""The config.json of a model that lost neurons, heads or layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.checkpoints.skeleton import empty_model
from ridgeline.compress.pruning.structured.places import MlpPlace
from ridgeline.compress.pruning.structured.units import Heads
from ridgeline.errors import InputError

_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_PER_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers")
"""Lists of config.json that have an entry for each layer."""


def without_neurons(config: Mapping[str, Any], place: MlpPlace, kept: int) -> dict[str, Any]:
    """With another width of the MLP."""
    return {**config, place.width_key: kept}


def heads_of(config: Mapping[str, Any]) -> Heads:
    """How many heads a config has."""
    query = int(config["num_attention_heads"])
    dim = config.get("head_dim") or int(config["hidden_size"]) // query
    return Heads(query=query, kv=int(config.get("num_key_value_heads") or query), dim=int(dim))


def without_heads(config: Mapping[str, Any], kept: Heads) -> dict[str, Any]:
    """With fewer heads of the size that they had.

    Raises:
        InputError: transformers wants a number of heads that divides the hidden size.
    """
    hidden = int(config["hidden_size"])
    if hidden % kept.query:
        raise InputError(
            f"{kept.query} heads would stay, and transformers loads only a number that divides the"
            f" hidden size {hidden}; prune another share"
        )
    return {
        **config,
        "num_attention_heads": kept.query,
        "num_key_value_heads": kept.kv,
        "head_dim": kept.dim,
    }


def without_layers(config: Mapping[str, Any], kept: Sequence[int]) -> dict[str, Any]:
    """With these layers alone.

    Raises:
        InputError: The config counts its layers under a name that we do not know.
    """
    counts = [key for key in _LAYER_COUNTS if key in config]
    if not counts:
        raise InputError(
            f"config.json counts its layers under none of {', '.join(_LAYER_COUNTS)}; layers"
            " cannot be pruned from this model"
        )
    lists = {key: config[key] for key in _PER_LAYER if isinstance(config.get(key), list)}
    return {
        **config,
        **{key: len(kept) for key in counts},
        **{key: [entries[place] for place in kept] for key, entries in lists.items()},
    }


def check_loads(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Prove that transformers builds a model of these tensors from this config.

    Args:
        config: As it will be saved.
        shapes: Of every tensor that will be saved; a tied one may be missing.

    Raises:
        InputError: It builds another, or none.
    """
    import torch
    from transformers import AutoConfig

    values = dict(config)
    try:
        about = AutoConfig.for_model(values.pop("model_type"), **values)
        model = empty_model(about, dtype=torch.float32)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        raise InputError(f"transformers refuses the smaller config: {error}") from None
    for name, parameter in model.named_parameters():
        found = shapes.get(name)
        if found is not None and found != tuple(parameter.shape):
            raise InputError(
                f"{name} has the shape {found} after pruning, and transformers would build"
                f" {tuple(parameter.shape)}: this family cannot be made smaller in this way"
            )
