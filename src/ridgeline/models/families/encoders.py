"""Readers of models that encode: BERT, T5's two stacks, and ViT over image patches.

BERT (arXiv 1810.04805), T5 (1910.10683; version 1.1 gates the MLP and unties the head), ViT
(2010.11929).
"""

from __future__ import annotations

from typing import Any

from ridgeline.models.families.sizes import LAYERS, POSITIONS, decoder, num_labels
from ridgeline.models.keys import Keys
from ridgeline.models.spec import ModelSpec


def bert(keys: Keys) -> ModelSpec:
    """Post-norm; without `architectures`, the masked language model."""
    named = (keys.texts("architectures") or [""])[0]
    if named.endswith(("ForSequenceClassification", "ForTokenClassification")):
        keys.refuse("architectures", f"names {named}; give BertModel or BertForMaskedLM")
    heads = {"BertModel": "pooler", "BertForPreTraining": "pre-training"}
    head = heads.get(named, "masked-lm")
    return decoder(
        keys,
        kind="encoder",
        gated_mlp=False,
        norm="layer",
        final_norm=False,
        embedding_norm=True,
        max_positions=keys.size(*POSITIONS),
        learned_positions=True,
        token_types=keys.size("type_vocab_size", default=2),
        tied_embeddings=keys.flag("tie_word_embeddings", default=True),
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        head=head,
        head_bias=head != "pooler",
    )


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


READERS = {"bert": bert, "t5": t5, "vit": vit}
