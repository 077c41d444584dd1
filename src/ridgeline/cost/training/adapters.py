"""Low-rank matrices that are trained beside frozen weights: their size, their time, their memory.

A linear layer W gets B A x beside W x, with A [rank, inputs] and B [outputs, rank] (Hu et al.,
"LoRA", arXiv 2106.09685, section 4.1). Of W the backward pass computes the gradient of the input
alone, so that an input is kept only where an adapter, a norm or an activation reads it again. A
weight that is kept in few bits (Dettmers et al., "QLoRA", arXiv 2305.14314, section 3) is turned
into 16 bits before each of its matmuls, a layer at a time.

Tensor parallelism cuts A and B as it cuts W: of a matmul cut by columns B, of one cut by rows A.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.training.matmuls import Matmul, matmul_seconds
from ridgeline.cost.training.setting import Setting

OPERATORS_OF_ADAPTER = 4.0
"""Operators that an adapted matmul launches beside its own: A, B, the scale, the sum (as peft's
`lora.Linear.forward` does)."""
OPERATORS_OF_DROPOUT = 1.0
ADAPTER_TRAFFIC = 8.0
"""Bytes per output, in 16 bits, beside the matmuls: both products read, their sum written, and the
product of B written once more by its scale."""
WIDENED_TRAFFIC = 4.0
"""Bytes of memory traffic per weight that is turned into 16 bits, beside reading it: two written,
two read by the matmul. A compiled step of torchtune with 8,192 tokens takes 22 ms more in four
bits, over three passes, where this gives 23 (README, Llama 3.2 3B on an A100)."""
UNFUSED_TRAFFIC = 8.0
"""The least of a library's separate kernel, reading included (litgpt, `resource-tables.md`, with
bitsandbytes on an A100: Llama 2 7B takes 79 ms more a step and 13B 191 ms, over two passes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """One kind of linear layer with an adapter, on one device."""

    inputs: Floats
    outputs: Floats
    share: Floats
    """The share of the layers that have it, 0 where no adapter stands there."""


def adapted_matmuls(setting: Setting) -> list[Adapted]:
    """Every kind of linear layer that the setting's adapters may stand at.

    Routed experts have none: they are tensors of three dimensions, which peft passes by.
    """
    if not setting.frozen_weights.any():
        return []
    dims, tp, adapters = setting.dims, setting.layouts.tp, setting.adapters
    attends = dims.attention_layers / dims.layers
    latent = np.where(dims.kv_rank > 0, 1.0, 0.0)
    plain = attends * (1.0 - latent)
    on = np.where(setting.frozen_weights, 1.0, 0.0)
    query, key, value = (on * one for one in (adapters.query, adapters.key, adapters.value))
    hidden = dims.hidden
    found = [
        Adapted(inputs=hidden, outputs=dims.query_width / tp, share=plain * query),
        Adapted(inputs=hidden, outputs=dims.key_width / tp, share=plain * key),
        Adapted(inputs=hidden, outputs=dims.value_width / tp, share=plain * value),
        Adapted(
            inputs=dims.output_width / tp, outputs=hidden, share=attends * on * adapters.output
        ),
    ]
    if latent.any():
        found += _of_latent_attention(setting, attends * latent, query, np.maximum(key, value))
    if (dims.state_layers > 0).any():
        everywhere = on * adapters.everywhere * dims.state_layers / dims.layers
        found += [
            Adapted(inputs=hidden, outputs=dims.state_inputs / tp, share=everywhere),
            Adapted(inputs=dims.state_width / tp, outputs=hidden, share=everywhere),
        ]
    gated = np.where(dims.gates > 1, 1.0, 0.0)
    moe = dims.moe_layers / dims.layers * np.where(dims.shared_ffn > 0, 1.0, 0.0)
    for width, layers in ((dims.ffn, dims.dense_layers / dims.layers), (dims.shared_ffn, moe)):
        found += [
            Adapted(inputs=hidden, outputs=width / tp, share=layers * gated * on * adapters.gate),
            Adapted(inputs=hidden, outputs=width / tp, share=layers * on * adapters.up),
            Adapted(inputs=width / tp, outputs=hidden, share=layers * on * adapters.down),
        ]
    return found


def _of_latent_attention(
    setting: Setting, share: Floats, query: Floats, keys: Floats
) -> list[Adapted]:
    """Projections down to and up from the latent vectors."""
    dims, tp = setting.dims, setting.layouts.tp
    compressed = np.where(dims.q_rank > 0, 1.0, 0.0)
    from_width = np.where(dims.q_rank > 0, dims.q_rank, dims.hidden)
    kv_up = dims.heads * (dims.qk_dim - dims.rope_dim + dims.value_dim) / tp
    kv_down = dims.kv_rank + dims.rope_dim
    return [
        Adapted(inputs=dims.hidden, outputs=dims.q_rank, share=share * compressed * query),
        Adapted(inputs=from_width, outputs=dims.query_width / tp, share=share * query),
        Adapted(inputs=dims.hidden, outputs=kv_down, share=share * keys),
        Adapted(inputs=dims.kv_rank, outputs=kv_up, share=share * keys),
    ]


def adapter_parameters(setting: Setting) -> Floats:
    """Parameters of all adapters of one device's mean stage."""
    each: Floats = np.zeros(1)
    for one in adapted_matmuls(setting):
        each = each + one.share * setting.adapters.rank * (one.inputs + one.outputs)
    return each * setting.dims.layers / setting.layouts.pp


def adapter_flops(setting: Setting) -> Floats:
    """FLOPs of one mean layer's adapters in the forward pass of one micro-batch on one device."""
    whole: Floats = np.zeros(1)
    for one in adapted_matmuls(setting):
        for matmul in _products(setting, one):
            whole = whole + one.share * matmul.flops
    return whole


def adapter_seconds(setting: Setting) -> tuple[Floats, Floats]:
    """Forward and backward time of one mean layer's adapters on one micro-batch."""
    forward: Floats = np.zeros(1)
    backward: Floats = np.zeros(1)
    bandwidth = setting.site.memory_bytes_per_second * setting.rates.memory
    dropped = np.where(setting.adapters.dropout, 1.0, 0.0)
    for one in adapted_matmuls(setting):
        # Dropout reads an input and writes it with its mask of one byte.
        moved = ADAPTER_TRAFFIC * one.outputs + 5.0 * dropped * one.inputs
        wise = setting.tokens * moved / bandwidth
        # The gradient of the input is added to the frozen weight's.
        back = setting.tokens * (ADAPTER_TRAFFIC + 5.0 * dropped) * one.inputs / bandwidth
        forward = forward + one.share * wise
        backward = backward + one.share * back
        for matmul in _products(setting, one):
            forward = forward + one.share * matmul_seconds(setting, matmul, "forward")
            for phase in ("dgrad", "wgrad"):
                backward = backward + one.share * matmul_seconds(setting, matmul, phase)
    return forward, backward


def adapter_operators(setting: Setting) -> Floats:
    """Operators that one pass through a mean layer launches for its adapters."""
    dropped = np.where(setting.adapters.dropout, OPERATORS_OF_DROPOUT, 0.0)
    return num_adapters(setting) * (OPERATORS_OF_ADAPTER + dropped)


def num_adapters(setting: Setting) -> Floats:
    """Adapters of a mean layer, of two matrices each."""
    shares: Floats = np.zeros(1)
    for one in adapted_matmuls(setting):
        shares = shares + one.share
    return shares


def dequantise_seconds(setting: Setting) -> Floats:
    """Time of turning one mean layer's weights into 16 bits, once for each pass."""
    held = setting.dims.dense_parameters / setting.layouts.tp
    layouts = setting.layouts
    held = held + setting.dims.routed_parameters / (layouts.ep * layouts.etp)
    fused = setting.adapters.weight_bytes + WIDENED_TRAFFIC
    each = np.where(layouts.compiled, fused, np.maximum(fused, UNFUSED_TRAFFIC))
    moved = np.where(setting.converts_weights, each, 0.0)
    bandwidth = setting.site.memory_bytes_per_second * setting.rates.memory
    return moved * held / setting.dims.layers / bandwidth


def widened_bytes(setting: Setting) -> Floats:
    """The largest matrix in 16 bits, beside the format in which it is kept."""
    dims, layouts = setting.dims, setting.layouts
    mlp = dims.hidden * np.maximum(dims.ffn, dims.shared_ffn) / layouts.tp
    routed = dims.experts / layouts.ep * dims.gates * dims.expert_ffn * dims.hidden / layouts.etp
    largest = np.maximum(mlp, np.maximum(routed, dims.hidden * dims.query_width / layouts.tp))
    return np.where(setting.converts_weights, 2.0 * largest, 0.0)


def adapted_activation_bytes(setting: Setting) -> Floats:
    """What adapters add to one mean layer's kept activations, less what frozen weights spare.

    Bytes per token and device. Inputs of linear layers are kept for the gradients of their weights
    alone, as are the normalised values that an eager RMS norm multiplies with its weight.
    Attention's output and what an activation reads are kept for these themselves. An adapter keeps
    its input, or with dropout a copy of it and the mask, and what its first matrix gives.
    """
    if not setting.frozen_weights.any():
        return np.zeros(1)
    kept = np.where(setting.adapters.dropout, 0.0, 1.0)
    beside: Floats = np.zeros(1)
    for one in adapted_matmuls(setting):
        dropped = (1.0 - kept) * 3.0 * one.inputs
        beside = beside + one.share * (dropped + 2.0 * np.asarray(setting.adapters.rank))
    inputs = np.where(setting.adapters.saves_inputs, 0.0, _spared_inputs(setting, kept))
    spared = _norm_bytes(setting) + inputs
    return beside - np.where(setting.frozen_weights, spared, 0.0)


def _norm_bytes(setting: Setting) -> Floats:
    """Normalised values of eager RMS norms, kept for the gradients of their weights."""
    dims, layouts = setting.dims, setting.layouts
    streams = np.where(layouts.sp, dims.hidden / layouts.tp, dims.hidden * 1.0)
    eager = np.where(layouts.compiled | setting.software.fused_elementwise, 0.0, 1.0)
    return 2.0 * eager * dims.rms_norm * dims.parts * streams


def _spared_inputs(setting: Setting, kept: Floats) -> Floats:
    """Inputs of linear layers that nothing reads again; `kept` is 1 where an adapter keeps its."""
    dims, layouts, adapters = setting.dims, setting.layouts, setting.adapters
    streams = np.where(layouts.sp, dims.hidden / layouts.tp, dims.hidden * 1.0)
    projections = kept * np.maximum(np.maximum(adapters.query, adapters.key), adapters.value)
    mixes = (dims.attention_layers + dims.state_layers) / dims.layers
    dense = dims.dense_layers / dims.layers
    moe = dims.moe_layers / dims.layers
    shared = moe * np.where(dims.shared_ffn > 0, 1.0, 0.0)
    upward = kept * np.maximum(adapters.gate, adapters.up)
    whole = mixes * (1.0 - projections) + (dense + shared) * (1.0 - upward)
    width = dense * dims.ffn + moe * dims.shared_ffn
    inner = (1.0 - kept * adapters.down) * width / layouts.tp
    routed = moe * dims.top_k * (dims.hidden * layouts.etp + dims.expert_ffn) / layouts.tp
    return 2.0 * (streams * whole + inner + routed)


def _products(setting: Setting, one: Adapted) -> tuple[Matmul, Matmul]:
    """A x and B (A x) of one adapted matmul."""
    rank, rows = np.asarray(setting.adapters.rank), setting.tokens
    count = np.where(one.share > 0.0, 1.0, 0.0)
    return (
        Matmul(name="adapter_a", rows=rows, inner=one.inputs, outer=rank, count=count),
        Matmul(name="adapter_b", rows=rows, inner=rank, outer=one.outputs, count=count),
    )
