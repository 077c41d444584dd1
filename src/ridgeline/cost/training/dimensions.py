"""A model as numbers that the cost formulas multiply: shapes, counts and parameters by kind.

Every field is an array, of length one for one model, or of one entry per row when many different
runs are estimated together (a validation table, a refit). Absent parts have size 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.state_scan import scan_products
from ridgeline.models.counts import parameter_parts
from ridgeline.models.spec import (
    ModelSpec,
    as_windowed,
    is_dense,
    is_mixture,
    is_windowed,
    num_attention_layers,
    num_layers,
    num_parts,
    num_state_layers,
)

_POOLED = ("classifier", "pooler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """Shapes in elements; parameters as counts."""

    layers: Floats
    moe_layers: Floats
    """The layers with routed experts."""
    dense_layers: Floats
    """The layers with a plain MLP."""
    attention_layers: Floats
    state_layers: Floats
    """The layers that keep a state."""
    parts: Floats
    """Blocks that add to the residual stream, in a mean layer: 2 of attention and MLP."""
    hidden: Floats
    heads: Floats
    kv_heads: Floats
    qk_dim: Floats
    """Width of one head's query and key."""
    value_dim: Floats
    """Width of one head's value."""
    ffn: Floats
    output_gates: Floats
    """1 where attention's output is multiplied by a gate of the same width."""
    state_inputs: Floats
    """Width of the projections of a state's input."""
    state_width: Floats
    """Width of what its output projection reads."""
    state_scan: Floats
    """Multiplications of one token in its scan."""
    state_elements: Floats
    """Elements of one sequence's state in one layer."""
    choosing: Floats
    """Multiplications of a query with one key of sparse attention's chooser."""
    gates: Floats
    """Up projections of the MLP: 2 with a gate, else 1."""
    experts: Floats
    top_k: Floats
    expert_ffn: Floats
    shared_ffn: Floats
    q_rank: Floats
    """Rank of the compressed query in latent attention (0: not compressed)."""
    kv_rank: Floats
    """Rank of the compressed key and value in latent attention (0: ordinary attention)."""
    rope_dim: Floats
    outputs: Floats
    """Outputs of the head: the vocabulary, or the classes; 0 without a head."""
    pooled: Floats
    """1 where the head reads one position of a sequence: it classifies."""
    untied: Floats
    """1 where the output head has weights of its own."""
    window: Floats
    """Tokens that a windowed layer sees (0: no windows)."""
    windowed_share: Floats
    """Share of layers with a window."""
    causal: Floats
    rms_norm: Floats
    """1 where norms are RMS norms, which eager PyTorch builds of several kernels."""
    sinks: Floats
    """1 where attention has learned sinks."""
    expert_bias: Floats
    """1 where experts add biases and clamp: chains that grouped kernels do not fuse."""
    dense_parameters: Floats
    """Parameters of all layers without their routed experts: what every tensor-parallel group has
    once."""
    routed_parameters: Floats
    """Parameters of all routed experts."""
    embedding_parameters: Floats
    """Parameters of the input embedding with learned positions."""

    @property
    def query_width(self) -> Floats:
        """Elements of all heads' queries of one token."""
        return self.heads * self.qk_dim

    @property
    def key_width(self) -> Floats:
        """Elements of all key heads of one token, as the attention kernel reads them."""
        return self.kv_heads * self.qk_dim

    @property
    def value_width(self) -> Floats:
        """Elements of all value heads of one token."""
        return self.kv_heads * self.value_dim

    @property
    def output_width(self) -> Floats:
        """Elements of all heads' outputs of one token."""
        return self.heads * self.value_dim


def dimensions_of(model: ModelSpec, *, causal: bool = True) -> Dimensions:
    """The numbers of one model."""
    experts, latent = model.experts, model.latent
    layers = num_layers(model)
    parts = parameter_parts(model)
    attending = num_attention_layers(model)
    windowed = sum(is_windowed(model, layer) for layer in range(layers)) / max(attending, 1)
    attention = _attention(model, windowed)
    window = model.sliding_window
    if model.indexer is not None:
        windowed, window = 1.0, model.indexer.top_k
    values = {
        "layers": layers,
        "dense_layers": sum(is_dense(model, layer) for layer in range(layers)),
        "attention_layers": attending,
        "state_layers": num_state_layers(model),
        "parts": num_parts(model) / layers,
        **_state(model),
        "moe_layers": sum(is_mixture(model, layer) for layer in range(layers)),
        "hidden": model.hidden,
        **attention,
        "ffn": model.ffn,
        "gates": 2 if model.gated_mlp else 1,
        "experts": experts.num_experts if experts else 0,
        "top_k": experts.top_k if experts else 0,
        "expert_ffn": experts.ffn if experts else 0,
        "shared_ffn": experts.shared_ffn if experts else 0,
        "q_rank": latent.q_rank if latent else 0,
        "kv_rank": latent.kv_rank if latent else 0,
        "rope_dim": latent.rope_dim if latent else 0,
        "outputs": _outputs(model),
        "pooled": model.head in _POOLED,
        "untied": not model.tied_embeddings,
        "window": window,
        "windowed_share": windowed,
        "causal": causal and model.kind in ("decoder", "encoder-decoder"),
        "rms_norm": model.norm == "rms",
        "sinks": model.attention_sinks,
        "expert_bias": experts.bias if experts else False,
        "dense_parameters": parts.total - parts.routed_experts - parts.embedding - parts.head,
        "routed_parameters": parts.routed_experts,
        "embedding_parameters": parts.embedding,
    }
    return Dimensions(**{name: np.array([float(value)]) for name, value in values.items()})


def _attention(model: ModelSpec, windowed: float) -> dict[str, float]:
    """Sizes of attention, their mean over layers where windowed ones (that share) have others."""
    latent = model.latent
    if latent is not None:
        return {
            "heads": model.heads,
            "kv_heads": model.heads,
            "qk_dim": latent.nope_dim + latent.rope_dim,
            "value_dim": latent.value_dim,
        }
    near, far = as_windowed(model), 1.0 - windowed
    return {
        "heads": far * model.heads + windowed * near.heads,
        "kv_heads": far * model.kv_heads + windowed * near.kv_heads,
        "qk_dim": far * model.head_dim + windowed * near.head_dim,
        "value_dim": far * (model.value_dim or model.head_dim)
        + windowed * (near.value_dim or near.head_dim),
    }


def _state(model: ModelSpec) -> dict[str, float]:
    """The sizes of what stands in place of attention, or chooses for it."""
    state, chooser = model.state, model.indexer
    return {
        "output_gates": float(model.attention_gate),
        "state_inputs": float(state.inputs if state else 0),
        "state_width": float(state.width if state else 0),
        "state_scan": scan_products(state) if state else 0.0,
        "state_elements": float(state.heads * state.key_dim * state.value_dim if state else 0),
        "choosing": float(chooser.heads * chooser.dim if chooser else 0),
    }


def _outputs(model: ModelSpec) -> int:
    if model.head in _POOLED:
        return model.num_classes if model.head == "classifier" else model.hidden
    return model.vocab
