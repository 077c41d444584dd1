"""Compute time of a mean layer's forward and backward pass over one micro-batch.

A model's layers may differ (dense and expert MLPs, windows): every term is that of the mean layer,
so that a stage is layers / pp of them.

Element-wise work (norms, residuals, activations, rotary embeddings, dropout) takes bytes over
bandwidth. Elements read and written per token of one layer, each kernel reading its inputs and
writing its outputs once, as fused chains do; `eager_traffic` says how much more separate kernels
move:

    norms        2 x (read, write)         backward 2 x (read input and gradient, write)
    residuals    2 x (read 2, write 1)     backward 2 x (read 2, write 1)
    rotary       read, write q and k       the same; of a state: convolution, norm and gate
    activation   gated read 2f write f, else read f write f;   backward reads one f more each
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.training.adapters import adapter_seconds, dequantise_seconds
from ridgeline.cost.training.attention import attention_seconds
from ridgeline.cost.training.matmuls import (
    Matmul,
    attention_matmuls,
    cast_seconds,
    expert_matmuls,
    matmul_seconds,
    mlp_matmuls,
    state_matmuls,
)
from ridgeline.cost.training.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPass:
    """The seconds of a layer's passes by term."""

    forward: dict[str, Floats]
    backward: dict[str, Floats]


def layer_pass(setting: Setting) -> LayerPass:
    """Matmuls, attention and element-wise work of the mean layer."""
    forward: Floats = np.zeros(1)
    backward: Floats = np.zeros(1)
    casts: Floats = np.zeros(1)
    trained = np.where(setting.frozen_weights, 0.0, 1.0)
    for matmul, share in layer_matmuls(setting):
        forward = forward + share * matmul_seconds(setting, matmul, "forward")
        backward = backward + share * matmul_seconds(setting, matmul, "dgrad")
        backward = backward + share * trained * matmul_seconds(setting, matmul, "wgrad")
        casts = casts + share * cast_seconds(setting, matmul)
    attention = attention_seconds(setting)
    wise = elementwise_seconds(setting)
    adapters = adapter_seconds(setting)
    widened = dequantise_seconds(setting)
    return LayerPass(
        forward={
            "gemm": forward,
            "attention": attention[0],
            "elementwise": wise[0] + casts,
            "adapters": adapters[0],
            "dequantise": widened,
        },
        backward={
            "gemm": backward,
            "attention": attention[1],
            "elementwise": wise[1] + casts,
            "adapters": adapters[1],
            "dequantise": widened,
        },
    )


def layer_matmuls(setting: Setting) -> list[tuple[Matmul, Floats]]:
    """Matmuls of the mean layer, each with the share of layers that has it."""
    dims, layouts, tokens = setting.dims, setting.layouts, setting.tokens
    moe = dims.moe_layers / dims.layers
    attends = dims.attention_layers / dims.layers
    found = [(one, attends) for one in attention_matmuls(setting)]
    if (dims.state_layers > 0).any():
        states = dims.state_layers / dims.layers
        found += [(one, states) for one in state_matmuls(setting)]
    width = dims.ffn / layouts.tp
    found += [
        (one, dims.dense_layers / dims.layers) for one in mlp_matmuls(dims, tokens, width, "mlp_")
    ]
    if (dims.experts > 0).any():
        shared = dims.shared_ffn / layouts.tp
        found += [(one, moe) for one in mlp_matmuls(dims, tokens, shared, "shared_")]
        found += [(one, moe) for one in expert_matmuls(setting)]
    return found


def total(terms: Mapping[str, Floats]) -> Floats:
    """Sum of terms of different broadcastable lengths."""
    whole: Floats = np.zeros(1)
    for value in terms.values():
        whole = whole + value
    return whole


def in_sixteen_bits(setting: Setting) -> Setting:
    """The same setting with 16-bit matmuls: logits stay in them."""
    return replace(
        setting,
        width=np.maximum(setting.width, 2.0),
        gemm=setting.gemm_sixteen,
        site=replace(setting.site, peak=setting.site.peak_sixteen),
    )


def elements_per_token(setting: Setting) -> tuple[Floats, Floats]:
    """Elements moved per token: (of hidden width, whole without sequence parallelism; split)."""
    dims, layouts = setting.dims, setting.layouts
    drop = np.where(setting.software.dropout, 2.0, 0.0)
    hidden = dims.hidden * (4.0 + 6.0 + drop) * dims.parts / 2.0
    attends = dims.attention_layers / dims.layers
    rotary = 2.0 * attends * (dims.query_width + dims.key_width)
    # A state's inputs pass a convolution and, with its output, a norm under a gate.
    states = dims.state_layers / dims.layers
    rotary = rotary + states * (2.0 * dims.state_inputs + 3.0 * dims.state_width)
    dense = dims.dense_layers / dims.layers
    width = dense * dims.ffn / layouts.tp
    moe = dims.moe_layers / dims.layers
    unfused = np.where(dims.expert_bias > 0, setting.rates.eager_traffic, 1.0)
    routed = dims.top_k * dims.expert_ffn * unfused
    width = width + moe * (dims.shared_ffn + routed) / layouts.tp
    split = rotary / layouts.tp + (dims.gates + 1.0) * width
    return hidden, split


def routed_elements(setting: Setting) -> Floats:
    """Elements that routing a token's copies to its experts moves, in a mean layer."""
    dims, layouts = setting.dims, setting.layouts
    each = setting.rates.routing * dims.top_k * dims.hidden * layouts.etp / layouts.tp
    return dims.moe_layers / dims.layers * each / setting.software.expert_rate


def repeated_seconds(setting: Setting, forward: Mapping[str, Floats]) -> Floats:
    """Time of what a mean layer's selective recomputation, by modules, redoes of `forward`."""
    core = np.where(setting.software.repeats_core, forward["attention"], 0.0)
    experts: Floats = np.zeros(1)
    for matmul in expert_matmuls(setting):
        experts = experts + matmul_seconds(setting, matmul, "forward")
    bandwidth = setting.site.memory_bytes_per_second * setting.rates.memory
    moe = setting.dims.moe_layers / setting.dims.layers
    routing = setting.tokens * routed_elements(setting) * 2.0 / bandwidth
    redone = np.where(setting.software.repeats_experts, moe * experts + routing, 0.0)
    return np.where(setting.selects_core, core + redone, 0.0)


def elementwise_seconds(setting: Setting) -> tuple[Floats, Floats]:
    """Forward and backward time of one mean layer's element-wise work on one micro-batch."""
    layouts, rates = setting.layouts, setting.rates
    hidden, split = elements_per_token(setting)
    shared = np.where(layouts.sp, hidden / layouts.tp, hidden)
    eager = np.where(
        layouts.compiled | setting.software.fused_elementwise, 1.0, rates.eager_traffic
    )
    byte_seconds = 2.0 * eager / (setting.site.memory_bytes_per_second * rates.memory)
    routed = routed_elements(setting)
    forward = setting.tokens * (shared + split + routed) * byte_seconds
    backward = setting.tokens * (1.3 * shared + 1.6 * split + routed) * byte_seconds
    return forward, backward
