"""Readers of models that encode: BERT and its relatives, T5's two stacks, ViT over image patches.

BERT (arXiv 1810.04805) and the rows of `encoders.toml`; T5 (1910.10683; version 1.1 gates the MLP
and unties the head), ViT (2010.11929).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from ridgeline.models.families.sizes import (
    FFN,
    HEADS,
    HIDDEN,
    LAYERS,
    POSITIONS,
    Windows,
    decoder,
    num_labels,
    windows,
    windows_of,
)
from ridgeline.models.keys import Keys
from ridgeline.models.spec import ModelSpec


class Encoder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an encoder has that BERT has not, or the other way round, as one row says it."""

    gated_mlp: bool = False
    norm: Literal["rms", "layer"] = "layer"
    norm_bias: bool = True
    final_norm: bool = False
    embedding_norm: bool = True
    learned_positions: bool = True
    token_types: int = 2
    """The default of `type_vocab_size`; 0: it has no segments."""
    tied: bool = True
    bias: bool = True
    """Whether all projections have biases; else the next two keys say it."""
    attention_bias: str | None = None
    mlp_bias: str | None = None
    width: tuple[str, ...] = FFN
    """The keys of the MLP's width."""
    transform: Literal["usual", "without-bias", "none"] = "usual"
    """The layer and the norm between the encoder and its language-model head."""
    pooler: bool = True
    """Whether the model without a head has a pooler."""
    keeps_pooler: bool = False
    """Whether the pooler stands beside other heads, too."""
    embedding: int = 0
    """The default of `embedding_size`, where embeddings may be narrower than layers; 0: they may
    not."""
    windows: bool = False
    """Whether all layers but the first of each three see `local_attention` tokens."""
    buckets: bool = False
    sines: bool = False
    """Whether sines of all positions are kept as parameters, as wide as a head."""
    relative: bool = False
    contacts: bool = False
    """Whether each head of each layer has a weight in a predictor of contacts."""


def read_encoder(row: Encoder, keys: Keys) -> ModelSpec:
    """The encoder that a row describes, with the head that `architectures` names.

    Without it the head is that of the masked language model.
    """
    hidden, heads, layers = keys.size(*HIDDEN), keys.size(*HEADS), keys.size(*LAYERS)
    positions = row.learned_positions
    if row.relative:
        positions = keys.flag("position_biased_input", default=True)
    if row.contacts:
        kind = keys.text("position_embedding_type", default="absolute")
        positions = kind == "absolute"
    narrow = keys.size("embedding_size", default=row.embedding or hidden)
    if narrow != hidden and not row.embedding:
        keys.refuse("embedding_size", f"is {narrow}; only {hidden}, the hidden size, is modelled")
    traits: dict[str, Any] = {
        "kind": "encoder",
        "gated_mlp": row.gated_mlp,
        "norm": row.norm,
        "norm_bias": row.norm_bias,
        "final_norm": row.final_norm,
        "embedding_norm": row.embedding_norm,
        "ffn": keys.size(*row.width),
        "max_positions": keys.size(*POSITIONS),
        "learned_positions": positions,
        "token_types": keys.count("type_vocab_size", default=row.token_types),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=row.tied),
        "relative_buckets": keys.size("relative_attention_num_buckets", default=32)
        if row.buckets
        else 0,
        **_biases(row, keys),
        **(_local_windows(keys, layers) if row.windows else {}),
    }
    extra: dict[str, int] = {}
    if row.sines:
        extra["embed_positions"] = keys.size(*POSITIONS) * (hidden // heads)
    if row.relative:
        extra |= _relative_positions(keys, hidden, layers)
    if narrow != hidden:
        traits |= {"embedding_dim": narrow, "narrow_embedding": True}
    head = _encoder_head(row, keys, hidden, extra)
    if row.contacts:
        extra["contacts"] = layers * heads + 1
    return decoder(keys, **traits, **head, extra=extra)


def _biases(row: Encoder, keys: Keys) -> dict[str, bool]:
    attention = keys.flag(row.attention_bias, default=False) if row.attention_bias else row.bias
    mlp = keys.flag(row.mlp_bias, default=False) if row.mlp_bias else row.bias
    return {"attention_bias": attention, "output_bias": attention, "mlp_bias": mlp}


def _encoder_head(row: Encoder, keys: Keys, hidden: int, extra: dict[str, int]) -> dict[str, Any]:
    """The head; layers that no head of `ModelSpec` has go to `extra`."""
    named = (keys.texts("architectures") or [""])[0]
    dense = hidden * hidden + hidden  # ModernBERT's has a norm in place of a bias
    classes = {"head": "classifier", "head_bias": True}
    if named.endswith("ForSequenceClassification"):
        extra["classifier.dense"] = dense
        if row.keeps_pooler:
            extra["pooler"] = dense
        return {**classes, "num_classes": num_labels(keys)}
    if named.endswith("ForPreTraining"):
        return {"head": "pre-training", "head_bias": True}
    if named.endswith("Model") and not named.endswith("HeadModel"):
        return {"head": "pooler" if row.pooler else "none"}
    if row.keeps_pooler:
        extra["pooler"] = dense
    if named.endswith("ForTokenClassification"):
        if row.transform == "without-bias":
            extra["classifier.dense"] = dense
        return {**classes, "num_classes": num_labels(keys)}
    if row.transform == "none":
        return {"head": "lm", "head_bias": keys.flag("mlp_bias", default=False)}
    if row.transform == "without-bias":
        extra["head.dense"] = dense
        return {"head": "lm", "head_bias": keys.flag("decoder_bias", default=True)}
    return {"head": "masked-lm", "head_bias": True}


def _local_windows(keys: Keys, layers: int) -> Windows:
    window = keys.size("local_attention", default=128) // 2
    every = keys.size("global_attn_every_n_layers", default=3)
    if keys.has("layer_types"):
        return windows(keys, every=None, default=window)
    return windows_of(window, tuple(layer % every != 0 for layer in range(layers)))


def _relative_positions(keys: Keys, hidden: int, layers: int) -> dict[str, int]:
    """DeBERTa's vectors of distances, and what projects them where layers do not share theirs."""
    found: dict[str, int] = {}
    kernel = keys.count("conv_kernel_size", default=0)
    if kernel:
        found["encoder.conv"] = hidden * hidden * kernel + 3 * hidden
    if not keys.flag("relative_attention", default=False):
        return found
    buckets = _positive_or_none(keys, "position_buckets")
    span = _positive_or_none(keys, "max_relative_positions")
    rows = buckets or span or keys.size(*POSITIONS)
    found["rel_embeddings"] = 2 * rows * hidden
    if "layer_norm" in keys.text("norm_rel_ebd", default="none"):
        found["rel_norm"] = 2 * hidden
    if not keys.flag("share_att_key", default=False):
        kinds = keys.values.get("pos_att_type") or ""  # `c2p|p2c`, or a list
        if not isinstance(kinds, str | list):
            keys.refuse("pos_att_type", f"is {kinds!r}; it must be names, such as c2p|p2c")
        each = sum(kind in kinds for kind in ("c2p", "p2c"))
        found["pos_projections"] = layers * each * (hidden * hidden + hidden)
    return found


def _positive_or_none(keys: Keys, name: str) -> int | None:
    """A whole number; None where there is none, or one that stands for none (-1, 0)."""
    value = keys.values.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        keys.refuse(name, f"is {value!r}; it must be a whole number, or -1")
    return value if value > 0 else None


def t5(keys: Keys) -> ModelSpec:
    """One embedding for both stacks; positions are a learned bias, shared by a stack's layers."""
    layers = keys.size(*LAYERS)
    shape = keys.text("feed_forward_proj", default="relu")
    return decoder(
        keys,
        kind="encoder-decoder",
        gated_mlp=shape.startswith("gated"),
        head_dim=keys.size("d_kv", default=64),
        decoder_layers=keys.size("num_decoder_layers", default=layers),
        relative_buckets=keys.size("relative_attention_num_buckets", default=32),
        max_positions=keys.size("n_positions", default=512),
        tied_embeddings=keys.flag("tie_word_embeddings", default=True),
    )


def vit(keys: Keys) -> ModelSpec:
    """Square images; one class token in front of the patches."""
    image, patch = keys.size("image_size"), keys.size("patch_size")
    if image % patch:
        keys.refuse("patch_size", f"is {patch}; it must divide the image size {image}")
    return decoder(
        keys,
        kind="vision",
        gated_mlp=False,
        norm="layer",
        vocab=0,
        image_size=image,
        patch_size=patch,
        image_channels=keys.size("num_channels", default=3),
        max_positions=(image // patch) ** 2 + 1,
        learned_positions=True,
        attention_bias=keys.flag("qkv_bias", default=True),
        output_bias=True,
        mlp_bias=True,
        **_image_head(keys),
    )


def _image_head(keys: Keys) -> dict[str, Any]:
    """The classifier, unless `architectures` says `ViTModel`."""
    if (keys.texts("architectures") or [""])[0] == "ViTModel":
        return {"head": "pooler"}
    return {"head": "classifier", "head_bias": True, "num_classes": num_labels(keys)}


_TABLE = Path(__file__).with_name("encoders.toml")
ENCODERS = msgspec.toml.decode(_TABLE.read_bytes(), type=dict[str, Encoder])
READERS = {
    **{family: partial(read_encoder, row) for family, row in ENCODERS.items()},
    "t5": t5,
    "vit": vit,
}
