"""What most families have in common: sizes under their usual keys, windows, the kind of head.

Names and defaults are those of the configuration classes of Hugging Face transformers: a key that
may be absent has the same default there. Sizes have no default; a file without them is refused.
"""

from __future__ import annotations

from typing import Any, TypedDict

from ridgeline.models.keys import Keys
from ridgeline.models.spec import ModelSpec

HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed", "dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
FFN = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")


class Windows(TypedDict):
    """Which layers see a window only."""

    sliding_window: int
    full_attention_every: int


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


def windows(keys: Keys, *, every: int | None, default: int = 0) -> Windows:
    """The windows of a model: where `layer_types` lists them, else all layers but one of `every`.

    `every=None`: there are windows only where `layer_types` says so.
    """
    window = keys.count("sliding_window", default=default)
    kinds = keys.texts("layer_types")
    if kinds is None:
        if every is None or not window:
            return NO_WINDOW
        return Windows(sliding_window=window, full_attention_every=every)
    layers = keys.size(*LAYERS)
    if len(kinds) != layers:
        keys.refuse("layer_types", f"lists {len(kinds)} layers; the model has {layers}")
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if unknown:
        keys.refuse("layer_types", f"names {unknown[0]!r}; full and sliding attention are known")
    full = [number for number, kind in enumerate(kinds, 1) if kind == "full_attention"]
    if len(full) == layers:
        return NO_WINDOW
    if not window:
        keys.refuse("sliding_window", "is missing; layer_types names windowed layers")
    step = layers // len(full) if full else 0
    # The first of each group of layers or the last: as many are full.
    if full and (full != list(range(full[0], layers + 1, step)) or layers // step != len(full)):
        keys.refuse(
            "layer_types",
            "mixes full and windowed layers without a period; remove it to count all as full",
        )
    return Windows(sliding_window=window, full_attention_every=step)
