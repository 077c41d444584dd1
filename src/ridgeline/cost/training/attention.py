"""Time of softmax attention itself: fused (FlashAttention) or through the score matrix.

Fused: FLOPs 4·s²·d per head and sequence forward (halved by a causal mask), 2.5 times that
backward, five matmuls instead of two because scores are recomputed (Dao, "FlashAttention-2",
arXiv 2307.08691, section 4.1). Unfused: every matmul is full, and the scores of `heads · s²`
elements pass through memory (5·a·s²·b bytes kept per layer; Korthikanti et al., arXiv 2205.05198,
section 4.1, counts the same tensors).
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.training.matmuls import alignment, utilisation
from ridgeline.cost.training.setting import Setting

BACKWARD_FACTOR = 2.5
FORWARD_SCORE_BYTES = 13.0
"""Bytes moved per score: the matmul writes 2, scale-mask-softmax 4, dropout 4 and its mask 1, the
matmul reads 2."""
BACKWARD_SCORE_BYTES = 21.0
"""Bytes moved per score: gradient written 2, dropout 5, softmax 6, and four reads by the three
matmuls."""
BLOCK = 128.0
"""Rows of a block of a fused kernel: what a causal mask cannot skip, and the unit of work."""


def attended_tokens(setting: Setting) -> Floats:
    """Keys per query, mean over queries and layers, with causal mask and windows."""
    dims, seq = setting.dims, setting.document
    full = np.where(dims.causal > 0, (seq + BLOCK) / 2.0, seq)
    full = np.minimum(full, seq)
    window = np.minimum(dims.window + BLOCK, full)
    return full * (1.0 - dims.windowed_share) + window * dims.windowed_share


def attention_flops(setting: Setting) -> Floats:
    """FLOPs of what mixes tokens in a mean layer, for one micro-batch and device."""
    dims = setting.dims
    attends, states = dims.attention_layers / dims.layers, dims.state_layers / dims.layers
    scanned = 2.0 * setting.tokens * dims.state_scan / setting.layouts.tp
    return attends * kernel_flops(setting) + states * scanned


def kernel_flops(setting: Setting) -> Floats:
    """FLOPs of one layer's attention, as a fused kernel executes them."""
    dims = setting.dims
    per_pair = 2.0 * dims.heads * (dims.qk_dim + dims.value_dim) / setting.layouts.tp
    return setting.tokens * attended_tokens(setting) * per_pair


def _head_rate(setting: Setting) -> Floats:
    """Small heads feed the matrix units worse: half the rate near 32 elements.

    Read off the head sizes 64 and 128 in figures 4 to 6 of FlashAttention-2.
    """
    size = (setting.dims.qk_dim + setting.dims.value_dim) / 2.0
    odd = np.where(np.mod(size, 8.0) == 0.0, 1.0, 0.8)
    return odd * np.minimum(size / (size + 32.0) * 1.25, 1.0)


def _fused(setting: Setting) -> tuple[Floats, Floats]:
    heads = setting.dims.heads / setting.layouts.tp
    blocks = setting.layouts.micro_batch * heads * setting.seq / setting.layouts.cp / BLOCK
    waves = blocks / setting.site.units
    filled = waves / np.maximum(np.ceil(waves), 1.0)
    span = attended_tokens(setting)
    rate = setting.site.peak_sixteen * _head_rate(setting) * span / (span + 2.0 * BLOCK)
    rate = rate * np.where(waves < 1.0, filled, 0.5 + 0.5 * filled)
    tuned = setting.rates.vendor_attention
    software = setting.software
    takes = software.vendor_attention & (software.sink_attention | (setting.dims.sinks == 0))
    rate = rate * np.where(takes, tuned, 1.0)
    rate = rate * setting.software.attention_rate
    flops = kernel_flops(setting)
    forward = flops / (rate * setting.rates.flash_forward)
    return forward, BACKWARD_FACTOR * flops / (rate * setting.rates.flash_backward)


def _unfused(setting: Setting) -> tuple[Floats, Floats]:
    dims, site, rates = setting.dims, setting.site, setting.rates
    seq = setting.seq
    heads = dims.heads / setting.layouts.tp * setting.layouts.micro_batch
    rows = seq / setting.layouts.cp
    scores = heads * rows * seq
    depth = dims.qk_dim
    rate = setting.gemm_sixteen * site.peak_sixteen * alignment(depth, 2.0, rates.misalignment)
    inner_rate = depth / (depth + rates.gemm_half_depth) * utilisation(rows, seq, heads, site.units)
    outer_rate = utilisation(rows, depth, heads, site.units)
    to_scores = 2.0 * scores * depth / (rate * inner_rate)
    from_scores = 2.0 * scores * depth / (rate * outer_rate)
    bandwidth = site.memory_bytes_per_second * rates.memory
    drop = np.where(setting.software.dropout, 0.0, 5.0)
    forward = to_scores + from_scores + scores * (FORWARD_SCORE_BYTES - drop) / bandwidth
    backward = (
        2.0 * to_scores + 2.0 * from_scores + scores * (BACKWARD_SCORE_BYTES - drop) / bandwidth
    )
    return forward, backward


SCAN_RATE = 0.06
"""Share of the 16-bit peak that a scan in chunks sustains: its states wait for one another, in
kernels of Triton; the prior of serving (`plan/serving/priors.toml`)."""


def scan_seconds(setting: Setting) -> tuple[Floats, Floats]:
    """Forward and backward time of one layer's scan of a state, for one micro-batch."""
    products = setting.tokens * setting.dims.state_scan / setting.layouts.tp
    forward = 2.0 * products / (setting.site.peak_sixteen * SCAN_RATE)
    return forward, BACKWARD_FACTOR * forward


def choosing_seconds(setting: Setting) -> tuple[Floats, Floats]:
    """Time of choosing the tokens that sparse attention reads: every query meets every key."""
    met = np.where(setting.dims.causal > 0, setting.document / 2.0, setting.document)
    flops = 2.0 * setting.tokens * met * setting.dims.choosing / setting.layouts.tp
    forward = flops / (setting.site.peak_sixteen * setting.rates.flash_forward)
    return forward, 2.0 * forward


def attention_seconds(setting: Setting) -> tuple[Floats, Floats]:
    """Forward and backward time of what mixes tokens in a mean layer, for one micro-batch."""
    dims = setting.dims
    flash, plain = _fused(setting), _unfused(setting)
    fused = setting.software.fused_attention
    attends, states = dims.attention_layers / dims.layers, dims.state_layers / dims.layers
    scanned, chosen = scan_seconds(setting), choosing_seconds(setting)
    forward, backward = (
        attends * (np.where(fused, flash[way], plain[way]) + chosen[way]) + states * scanned[way]
        for way in (0, 1)
    )
    return forward, backward
