"""What most families have in common: sizes under their usual keys, windows, the kind of head.

Names and defaults are those of the configuration classes of Hugging Face transformers: a key that
may be absent has the same default there. Sizes have no default; a file without them is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, TypeVar

from ridgeline.models.keys import Keys
from ridgeline.models.spec import ModelSpec

HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed", "dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
FFN = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "dff")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")


_T = TypeVar("_T")

WINDOWED = ("sliding_attention", "chunked_attention", "local_attention", "local")
FULL = ("full_attention", "global_attention", "global")


class Windows(TypedDict, total=False):
    """Which layers see a window only."""

    sliding_window: int
    full_attention_every: int
    windowed: tuple[bool, ...]


NO_WINDOW = Windows(sliding_window=0, full_attention_every=1)


def decoder(keys: Keys, **traits: Any) -> ModelSpec:
    """A `ModelSpec` from the usual keys; `traits` are fields that the family fixes or reads.

    A trait wins over the usual key: `kv_heads=1` is multi-query whatever the file says.
    """
    hidden = keys.size(*HIDDEN)
    heads = keys.size(*HEADS)
    fields: dict[str, Any] = {
        "name": keys.place,
        "family": keys.text("model_type", default="generic"),
        "hidden": hidden,
        "heads": heads,
    }
    if "layers" not in traits:
        fields["layers"] = keys.size(*LAYERS)
    if "kv_heads" not in traits:
        fields["kv_heads"] = keys.size(*KV_HEADS, default=heads)
    if "head_dim" not in traits:
        fields["head_dim"] = head_dim(keys, hidden, heads)
    if "ffn" not in traits:
        fields["ffn"] = keys.size(*FFN)
    if "vocab" not in traits:
        fields["vocab"] = keys.size("vocab_size")
    if "tied_embeddings" not in traits:
        fields["tied_embeddings"] = keys.flag("tie_word_embeddings", default=False)
    if "max_positions" not in traits:
        fields["max_positions"] = keys.size(*POSITIONS, default=0)
    if "head" not in traits:
        fields.update(language_head(keys))
    spec = ModelSpec(**{**fields, **traits})
    if spec.heads % spec.kv_heads:
        keys.refuse(
            next((name for name in KV_HEADS if keys.has(name)), KV_HEADS[0]),
            f"is {spec.kv_heads}; it must divide the {spec.heads} attention heads",
        )
    near = spec.windowed_attention
    if near is not None and near.heads % near.kv_heads:
        keys.refuse(
            KV_HEADS[0], f"makes {near.kv_heads} of windowed layers; they have {near.heads} heads"
        )
    return spec


def head_dim(keys: Keys, hidden: int, heads: int) -> int:
    """The head's width as given, else the hidden size over the heads, which must be whole."""
    if keys.has("head_dim"):
        return keys.size("head_dim")
    if hidden % heads:
        name = next(name for name in HEADS if keys.has(name))
        keys.refuse(name, f"is {heads}; it must divide the hidden size {hidden}, or set head_dim")
    return hidden // heads


def language_head(keys: Keys) -> dict[str, Any]:
    """The head that `architectures` names; without one, the language-model head."""
    named = (keys.texts("architectures") or [""])[0]
    if named.endswith(("ForSequenceClassification", "ForTokenClassification")):
        bias = named.endswith("ForTokenClassification")
        return {"head": "classifier", "head_bias": bias, "num_classes": num_labels(keys)}
    if named.endswith("Model") and not named.endswith("LMHeadModel"):
        return {"head": "none"}
    return {"head": "lm"}


def num_labels(keys: Keys) -> int:
    """Classes of a classifier: the size of `id2label`, else `num_labels`, else 2."""
    labels = keys.table("id2label").values
    return len(labels) or keys.size("num_labels", default=2)


def windows(
    keys: Keys, *, every: int | None, default: int = 0, key: str = "sliding_window"
) -> Windows:
    """The windows of a model: where `layer_types` lists them, else all layers but one of `every`.

    A chunk that a layer's tokens see (Llama 4) counts as a window of its size, which is what its
    cache keeps.

    Args:
        keys: Of the configuration.
        every: The last of so many layers sees all; None: there are windows only where
            `layer_types` says so.
        default: The window's size where the file says none.
        key: The key of the window's size.
    """
    window = keys.count(key, default=default)
    kinds = keys.texts("layer_types")
    if kinds is None:
        if every is None or not window or is_null(keys, key):
            return NO_WINDOW
        return Windows(sliding_window=window, full_attention_every=every)
    unknown = sorted(set(of_each_layer(keys, "layer_types", kinds)) - {*FULL, *WINDOWED})
    if unknown:
        keys.refuse("layer_types", f"names {unknown[0]!r}; full and sliding attention are known")
    windowed = tuple(kind in WINDOWED for kind in kinds)
    if any(windowed) and not window:
        keys.refuse(key, "is missing; layer_types names windowed layers")
    return windows_of(window, windowed)


def of_each_layer(keys: Keys, name: str, listed: Sequence[_T]) -> Sequence[_T]:
    """A list that says something of each layer, as the file has it under a key.

    Raises:
        InputError: The model has more layers, or fewer.
    """
    layers = keys.size(*LAYERS)
    if len(listed) != layers:
        keys.refuse(name, f"lists {len(listed)} layers; the model has {layers}")
    return listed


def is_null(keys: Keys, key: str) -> bool:
    """Whether the file says that there is none, where a missing key would have a default."""
    return key in keys.values and keys.values[key] is None


def windows_of(window: int, windowed: tuple[bool, ...]) -> Windows:
    """The windows where each layer says whether it has one: a period, or else all layers.

    >>> windows_of(8, (True, True, False, True, True, False))
    {'sliding_window': 8, 'full_attention_every': 3}
    """
    layers = len(windowed)
    full = [number for number, one in enumerate(windowed, 1) if not one]
    if len(full) == layers:
        return NO_WINDOW
    every = layers // len(full) if full else 0
    if full == (list(range(every, layers + 1, every)) if every else []):
        return Windows(sliding_window=window, full_attention_every=every)
    return Windows(sliding_window=window, windowed=windowed)
