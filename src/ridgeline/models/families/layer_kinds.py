"""Which layers attend and which keep a state, in each way in which configurations say so."""

from __future__ import annotations

from ridgeline.models.families.sizes import LAYERS
from ridgeline.models.keys import Keys
from ridgeline.models.spec import LayerKind

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
