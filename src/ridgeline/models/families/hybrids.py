"""Decoders that keep a state in some layers or in all; `hybrids.toml` lists them with their papers.

A row has the traits of `relatives.py`, the mixer that keeps the state (`states.py`), and where it
stands; which layers attend is read from the configuration (`layer_words`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.models.families.mixtures import EXPERTS, latent_of
from ridgeline.models.families.relatives import Relative, traits_of, with_own_tensors
from ridgeline.models.families.sizes import (
    FFN,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    NO_WINDOW,
    WINDOWED,
    Windows,
    decoder,
    windows_of,
)
from ridgeline.models.families.states import MIXERS
from ridgeline.models.keys import Keys
from ridgeline.models.spec import LayerKind, ModelSpec


class Hybrid(Relative, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a family with states has, as one row says it."""

    mixer: str
    """What keeps the state: a key of `MIXERS`."""
    every: int = 0
    """One layer in so many attends where the configuration says nothing; 0: none."""
    alone: bool = False
    """Whether a layer is a mixer or an MLP alone."""
    beside: bool = False
    """Whether attention and state stand side by side in every layer."""
    conv_width: int = 0
    """The default of `conv_L_cache` where it is not the mixer's; 0: it is."""
    latent: bool = False
    """Whether its attention is latent."""
    mlp_width: str | None = None
    """The key of the dense MLP's width, where it is another one."""
    mixture_period: str | None = None
    """The key that says that one layer in so many is a mixture."""
    mixture_offset: str | None = None


def read_hybrid(row: Hybrid, keys: Keys) -> ModelSpec:
    """The model of a family that a row describes."""
    windowed = _windowed(row, keys)
    words = layer_words(keys, every=row.every)
    kinds = kinds_of(words, alone=row.alone, beside=row.beside)
    keys = _with_sizes(row, keys, attends=any(kind.attention for kind in kinds))
    has_experts = row.experts is not None and keys.count(*EXPERTS, default=0) > 1
    if row.alone and not any(one.mlp == "experts" for one in kinds):
        has_experts = False
    plain = row if has_experts else msgspec.structs.replace(row, experts=None)
    traits: dict[str, Any] = traits_of(plain, keys)
    if row.mlp_width and not has_experts:
        traits["ffn"] = keys.size(row.mlp_width)
    if row.mixture_period and has_experts:
        kinds = _periodic(kinds, keys, row)
    listed = traits.pop("kinds", ())
    if listed and len(listed) != len(kinds):
        keys.refuse("num_hidden_layers", f"is {len(listed)}; its pattern has {len(kinds)} layers")
    if listed:  # mixtures between dense layers
        kinds = tuple(
            msgspec.structs.replace(kind, mlp=one.mlp)
            for kind, one in zip(kinds, listed, strict=True)
        )
    if row.latent:
        traits["latent"] = latent = latent_of(keys)
        traits["kv_heads"] = keys.size(*HEADS)
        traits["head_dim"] = latent.nope_dim + latent.rope_dim
    spec = decoder(
        keys,
        **traits,
        **windowed,
        layers=len(kinds),
        state=MIXERS[row.mixer](keys),
        kinds=kinds,
    )
    return with_own_tensors(spec)


def _windowed(row: Hybrid, keys: Keys) -> Windows:
    """The windows of the layers that attend: those of `layer_types`, or else of all."""
    if row.windows is None:
        return NO_WINDOW
    listed, window = keys.texts("layer_types"), row.windows
    size = keys.count(window.key, default=window.default)
    if listed is None and window.listed:
        keys.refuse("layer_types", "is missing; add it, as transformers writes it")
    if listed is None:
        return Windows(sliding_window=size, full_attention_every=0)
    return windows_of(size, tuple(kind in WINDOWED for kind in listed))


def _with_sizes(row: Hybrid, keys: Keys, *, attends: bool) -> Keys:
    """The keys, with those that a family spells in its own way under their usual names."""
    values = dict(keys.values)
    if keys.has("block_ff_dim") or row.mixer == "short-convolution":
        values["intermediate_size"] = _feed_forward(keys)
    if row.conv_width and not keys.has("conv_L_cache"):
        values["conv_L_cache"] = row.conv_width
    if keys.has("tie_embedding"):
        values["tie_word_embeddings"] = keys.values["tie_embedding"]
    if row.latent:
        values.setdefault("n_shared_experts", keys.values.get("num_shared_experts", 1))
        values.setdefault("first_k_dense_replace", 1)
        values.setdefault("q_lora_rank", None)
        kinds = keys.texts("mlp_layer_types")
        if kinds is not None:
            values["first_k_dense_replace"] = kinds.count("dense")
    if row.mixer == "rwkv":
        values |= {HEADS[0]: keys.size(*HIDDEN), "head_dim": 1}
        values.setdefault(FFN[0], 4 * keys.size(*HIDDEN))
    if row.alone and not attends:
        # Heads are those of the state, and no MLP has a width.
        state = MIXERS[row.mixer](keys)
        values |= {HEADS[0]: state.heads, KV_HEADS[0]: state.heads, "head_dim": state.value_dim}
        values.setdefault(FFN[0], state.width)
    if keys.has("moe_latent_size"):
        keys.refuse("moe_latent_size", "is set; experts behind a projection are not modelled")
    return Keys(values, keys.place)


def _feed_forward(keys: Keys) -> int:
    """The width of LFM2's MLP: two thirds of the stated one, rounded up, unless told otherwise."""
    width = keys.size("block_ff_dim", *FFN)
    adjusts = keys.text("model_type", default="") == "lfm2"
    if not keys.flag("block_auto_adjust_ff_dim", default=adjusts):
        return width
    name = "block_ffn_dim_multiplier"
    factor = keys.values.get(name) or 1.0
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        keys.refuse(name, f"is {factor!r}; it must be a number")
    width = int(factor * int(2 * width / 3))
    step = keys.size("block_multiple_of", default=256)
    return -(-width // step) * step


def _periodic(kinds: tuple[LayerKind, ...], keys: Keys, row: Hybrid) -> tuple[LayerKind, ...]:
    """The layers, each period's one at the offset a mixture."""
    period = keys.size(str(row.mixture_period), default=2)
    offset = keys.count(str(row.mixture_offset), default=1) % period
    return tuple(
        msgspec.structs.replace(kind, mlp="experts" if layer % period == offset else "dense")
        for layer, kind in enumerate(kinds)
    )


_TABLE = Path(__file__).with_name("hybrids.toml")
READERS = {
    family: partial(read_hybrid, row)
    for family, row in msgspec.toml.decode(_TABLE.read_bytes(), type=dict[str, Hybrid]).items()
}


LISTS = ("layer_types", "layers_block_type")
WORDS = {
    **dict.fromkeys(
        ("full_attention", "attention", "indexed_attention", "sliding_attention"), "attention"
    ),
    **dict.fromkeys(("linear_attention", "mamba", "mamba2", "conv", "short_conv"), "state"),
    "hybrid": "both",
    "moe": "experts",
    "mlp": "dense",
}
PATTERN = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
"""Letters of `hybrid_override_pattern` (Nemotron H)."""


def layer_words(keys: Keys, *, every: int) -> list[str]:
    """What each layer has, as one of the values of `WORDS`.

    Args:
        keys: Of the configuration.
        every: Where nothing is said, one layer in so many attends, the last of each group; 0: none.
    """
    for name in LISTS:
        listed = keys.texts(name)
        if listed is not None:
            return _known(keys, name, listed)
    pattern = keys.text("hybrid_override_pattern", default="")
    if pattern:
        listed = [PATTERN.get(letter, letter) for letter in pattern]
        return _known(keys, "hybrid_override_pattern", listed)
    layers = keys.size(*LAYERS)
    full = _full_layers(keys, layers, every)
    return ["attention" if layer in full else "state" for layer in range(layers)]


def _known(keys: Keys, name: str, listed: list[str]) -> list[str]:
    unknown = sorted(set(listed) - set(WORDS))
    if unknown:
        keys.refuse(name, f"names {unknown[0]!r}; known: {', '.join(WORDS)}")
    if keys.has(*LAYERS) and name != "hybrid_override_pattern":
        layers = keys.size(*LAYERS)
        if len(listed) != layers:
            keys.refuse(name, f"lists {len(listed)} layers; the model has {layers}")
    return [WORDS[word] for word in listed]


def _full_layers(keys: Keys, layers: int, every: int) -> set[int]:
    """Layers of full attention, counted from 0."""
    for name in ("attn_layer_indices", "full_attn_idxs"):
        listed = keys.numbers(name)
        if listed is not None:
            return set(listed)
    nested = keys.table("linear_attn_config").numbers("full_attn_layers")
    if nested is not None:
        return {layer - 1 for layer in nested}  # counted from 1 there
    kinds = keys.numbers("attn_type_list")
    if kinds is not None:
        return {layer for layer, kind in enumerate(kinds) if kind == 1}
    cycle = keys.texts("block_types")
    if cycle:
        return {layer for layer in range(layers) if cycle[layer % len(cycle)] == "attention"}
    if keys.has("attn_layer_period"):
        period = keys.size("attn_layer_period")
        first = keys.count("attn_layer_offset", default=0)
        return {layer for layer in range(layers) if layer % period == first % period}
    every = keys.size(
        "full_attention_interval", "layer_group_size", default=every or LARGEST_PERIOD
    )
    return {layer for layer in range(layers) if (layer + 1) % every == 0}


LARGEST_PERIOD = 10**6
"""No model has so many layers: none attends."""


def kinds_of(words: list[str], *, alone: bool, beside: bool) -> tuple[LayerKind, ...]:
    """The parts that each layer has.

    Args:
        words: From `layer_words`.
        alone: Whether a layer has one part alone (Nemotron H, Mamba).
        beside: Whether attention and state stand side by side in every layer (Falcon H1).
    """
    return tuple(_kind(word, alone=alone, beside=beside) for word in words)


def _kind(word: str, *, alone: bool, beside: bool) -> LayerKind:
    if word == "experts":
        return LayerKind(mlp="experts")
    if word == "dense":
        return LayerKind(mlp="dense")
    both = beside or word == "both"
    return LayerKind(
        attention=both or word == "attention",
        state=both or word == "state",
        mlp="" if alone else "usual",
    )
