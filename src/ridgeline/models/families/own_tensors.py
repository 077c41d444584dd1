"""Tensors that a family of `relatives.toml` has beyond its traits: name → parameters of all layers.

Small ones beside the projections: activations with parameters, norms inside a block, gates of one
number for each head. What they multiply is not counted as work.
"""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.models.layers import num_attention_layers, num_layers
from ridgeline.models.spec import ModelSpec


def apertus(spec: ModelSpec) -> dict[str, int]:
    """The activation xIELU has two numbers (arXiv 2411.13010)."""
    return {"act_fn": 2 * num_layers(spec)}


def bitnet(spec: ModelSpec) -> dict[str, int]:
    """Norms in front of the output and the down projection."""
    return {"sub_norms": num_layers(spec) * (spec.hidden + spec.ffn)}


def diffllama(spec: ModelSpec) -> dict[str, int]:
    """Four vectors make the share that one attention map takes from the other (2410.05258)."""
    return {"lambda": 4 * spec.head_dim * num_layers(spec)}


def doge(spec: ModelSpec) -> dict[str, int]:
    """Scales of both residuals, and a score for each value (2412.11834)."""
    scores = spec.kv_heads + spec.kv_heads * spec.kv_heads * spec.head_dim
    scores += spec.kv_heads if spec.attention_bias else 0
    return {"scores": num_layers(spec) * scores, "residuals": num_layers(spec) * 2 * spec.hidden}


def gate_of_heads(spec: ModelSpec) -> dict[str, int]:
    """One gate for each head, read from the layer's input (Ling 2.5)."""
    return {"head_gates": num_attention_layers(spec) * spec.hidden * spec.heads}


def rwkv(spec: ModelSpec) -> dict[str, int]:
    """Two vectors in front of the MLP that mix a token with the one before it."""
    return {"time_mix": num_layers(spec) * 2 * spec.hidden}


def layer_before_head(spec: ModelSpec) -> dict[str, int]:
    """A layer and a norm before the head (the embedding's norm is the first layer's, too)."""
    return {"lm_head.dense": spec.hidden * (spec.hidden + 1)}


def one_row_more(spec: ModelSpec) -> dict[str, int]:
    """A row of the embedding that the head has not."""
    return {"embed_tokens": spec.hidden}


OWN_TENSORS: dict[str, Callable[[ModelSpec], dict[str, int]]] = {
    "apertus": apertus,
    "bailing_hybrid": gate_of_heads,
    "bitnet": bitnet,
    "diffllama": diffllama,
    "doge": doge,
    "lfm3": gate_of_heads,
    "modernbert-decoder": layer_before_head,
    "moshi": one_row_more,
    "rwkv": rwkv,
}
"""Model type → its function."""
