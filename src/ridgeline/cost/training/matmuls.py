"""The matmuls of a transformer layer, on one device: their shapes, and the time of each.

Shapes follow Megatron-LM's split (Shoeybi et al., arXiv 1909.08053, section 3): query, key, value
and up projections are cut by columns, output and down projections by rows, so that each device of
a tensor-parallel group has 1/tp of every matmul. Routed experts see their share of the routed
tokens: tokens · top_k / experts per expert when the router is balanced, over tokens of the `ep`
ranks. The backward pass has two matmuls of the same FLOPs for each: one for the input's gradient,
one for the weight's.

A GPU computes an M x N output in tiles, one tile per compute unit at a time, so that

    utilisation = M·N / (tile area x units x waves),   waves = ⌈⌈M/tm⌉·⌈N/tn⌉·count / units⌉

(tile and wave quantisation: NVIDIA, "Matrix Multiplication Background User's Guide", section 3).
Libraries choose the best of several tiles; smaller tiles reuse less and run slower. Depth K fills
the pipeline of each tile: K/(K + half). A dimension that is no multiple of 128 bytes breaks the
wide loads ("NVIDIA Tensor Core alignment", same guide, section 4). Below the roofline's ridge the
operands' traffic decides instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.cost.arrays import Floats, Number
from ridgeline.cost.training.dimensions import Dimensions
from ridgeline.cost.training.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """`count` matmuls (rows x inner) · (inner x outer) of one layer's forward pass."""

    name: str
    rows: Floats
    inner: Floats
    outer: Floats
    count: Floats
    """Independent matmuls of this shape in one launch; 0 where the model has none."""
    grouped: bool = False
    """Many small matmuls in one launch: routed experts. One expert alone is a dense matmul."""

    @property
    def flops(self) -> Floats:
        """FLOPs of the forward pass."""
        return self.count * matmul_flops(self.rows, self.outer, self.inner)


def attention_matmuls(setting: Setting) -> list[Matmul]:
    """Projections of one attention block."""
    dims, tokens, tp = setting.dims, setting.tokens, setting.layouts.tp
    latent = dims.kv_rank > 0
    ordinary = np.where(latent, 0.0, 1.0)
    compressed = np.where(dims.q_rank > 0, 1.0, 0.0)
    fused = dims.query_width + dims.key_width + dims.value_width
    fused = fused + dims.output_gates * dims.output_width
    nope = dims.qk_dim - dims.rope_dim
    one = np.ones(1)
    found = [Matmul(name="qkv", rows=tokens, inner=dims.hidden, outer=fused / tp, count=ordinary)]
    if latent.any():
        kv_up = dims.heads * (nope + dims.value_dim) / tp
        kv_down = dims.kv_rank + dims.rope_dim
        query_in = np.where(dims.q_rank > 0, dims.q_rank, dims.hidden)
        is_latent = np.where(latent, 1.0, 0.0)
        found += [
            Matmul(
                name="q_down", rows=tokens, inner=dims.hidden, outer=dims.q_rank, count=compressed
            ),
            Matmul(
                name="q_up",
                rows=tokens,
                inner=query_in,
                outer=dims.query_width / tp,
                count=is_latent,
            ),
            Matmul(name="kv_down", rows=tokens, inner=dims.hidden, outer=kv_down, count=is_latent),
            Matmul(name="kv_up", rows=tokens, inner=dims.kv_rank, outer=kv_up, count=is_latent),
        ]
    out = dims.output_width / tp
    found.append(Matmul(name="out", rows=tokens, inner=out, outer=dims.hidden, count=one))
    return found


def state_matmuls(setting: Setting) -> list[Matmul]:
    """Projections of one layer with a state."""
    dims, tokens, tp = setting.dims, setting.tokens, setting.layouts.tp
    count = np.where(dims.state_inputs > 0, 1.0, 0.0)
    wide, narrow = dims.state_inputs / tp, dims.state_width / tp
    return [
        Matmul(name="state_in", rows=tokens, inner=dims.hidden, outer=wide, count=count),
        Matmul(name="state_out", rows=tokens, inner=narrow, outer=dims.hidden, count=count),
    ]


def mlp_matmuls(dims: Dimensions, tokens: Floats, width: Floats, tag: str) -> list[Matmul]:
    """Up (and gate, in one matmul) and down projection of an MLP of this width per device."""
    count = np.where(width > 0, 1.0, 0.0)
    up = dims.gates * width
    return [
        Matmul(name=f"{tag}up", rows=tokens, inner=dims.hidden, outer=up, count=count),
        Matmul(name=f"{tag}down", rows=tokens, inner=width, outer=dims.hidden, count=count),
    ]


def expert_matmuls(setting: Setting) -> list[Matmul]:
    """Routed experts of one layer on one device: experts/ep matmuls over all routed tokens."""
    dims, tokens = setting.dims, setting.routed_tokens
    ep, etp = setting.layouts.ep, setting.layouts.etp
    experts = np.maximum(dims.experts, 1.0)
    local = np.where(dims.experts > 0, np.maximum(dims.experts / ep, 1.0), 0.0)
    rows = tokens * ep * dims.top_k / experts
    width = dims.expert_ffn / etp
    up = dims.gates * width
    return [
        Matmul(name="expert_up", rows=rows, inner=dims.hidden, outer=up, count=local, grouped=True),
        Matmul(
            name="expert_down", rows=rows, inner=width, outer=dims.hidden, count=local, grouped=True
        ),
    ]


def busiest_rank(setting: Setting) -> Floats:
    """Tokens of the rank whose experts are the most popular, over the mean of all ranks.

    A step waits for it. Of ep ranks with E / ep experts each, whose shares of the tokens spread
    independently, the most loaded lies about sqrt(2 ln ep) standard deviations above the mean
    (Cramér, "Mathematical Methods of Statistics", 1946, section 28.6).
    """
    layouts, dims = setting.layouts, setting.dims
    local = np.maximum(dims.experts / layouts.ep, 1.0)
    spread = setting.rates.imbalance * np.sqrt(2.0 * np.log(layouts.ep) / local)
    return np.where(setting.software.forced_balance | (dims.experts < 1), 1.0, 1.0 + spread)


def matmul_seconds(setting: Setting, matmul: Matmul, phase: str) -> Floats:
    """Time of a matmul's forward, of its input's gradient (`dgrad`) or its weight's (`wgrad`)."""
    rows, outer, inner = {
        "forward": (matmul.rows, matmul.outer, matmul.inner),
        "dgrad": (matmul.rows, matmul.inner, matmul.outer),
        "wgrad": (matmul.inner, matmul.outer, matmul.rows),
    }[phase]
    rates, site, width = setting.rates, setting.site, setting.width
    half = rates.gemm_half_depth
    rate = setting.gemm * utilisation(rows, outer, matmul.count, site.units)
    rate = rate * inner / (inner + half * 2.0 / width)
    rate = rate * alignment(matmul.inner, width, rates.misalignment)
    rate = rate * alignment(matmul.outer, width, rates.misalignment)
    if matmul.grouped:
        rate = rate * np.where(matmul.count > 1.0, rates.expert_gemm, 1.0) / busiest_rank(setting)
    with np.errstate(divide="ignore", invalid="ignore"):
        compute = matmul.flops / (site.peak * rate)
    traffic = matmul.count * matmul_bytes(rows, outer, inner, width)
    moved = traffic / (site.memory_bytes_per_second * rates.memory)
    return np.where(matmul.count > 0, np.maximum(compute, moved), 0.0)


CAST_SECONDS = 6e-6
"""The least time of casting one expert's operands: two kernels of 3 microseconds each, one expert
after another (Transformer Engine's `GroupedLinear`, whose split quantisation loops over them)."""


def cast_seconds(setting: Setting, matmul: Matmul) -> Floats:
    """Casting the operands of a low-precision matmul: read 16 bits, write 8 or 4, twice over.

    Both layouts of each operand are needed, one forward and one backward (Micikevicius et al.,
    "FP8 formats for deep learning", arXiv 2209.05433).
    """
    low = np.where(setting.width < 2.0, 1.0, 0.0)
    elements = matmul.count * matmul.rows * (matmul.inner + matmul.outer)
    moved = low * elements * 2.0 * setting.rates.cast_traffic
    started = low * np.where(matmul.grouped, matmul.count, 0.0) * CAST_SECONDS
    return moved / (setting.site.memory_bytes_per_second * setting.rates.memory) + started


TILES = ((256.0, 128.0, 1.0), (128.0, 128.0, 0.94), (128.0, 64.0, 0.80), (64.0, 64.0, 0.55))
"""Rows, columns, and rate relative to the largest tile."""


def matmul_flops(rows: Floats, outer: Floats, inner: Floats) -> Floats:
    """Multiplications and additions of (rows x inner) · (inner x outer)."""
    return 2.0 * rows * outer * inner


def matmul_bytes(rows: Floats, outer: Floats, inner: Floats, width: Floats | float) -> Floats:
    """Operands read once at `width` bytes per element, the result written in 16 bits."""
    return width * inner * (rows + outer) + 2.0 * rows * outer


def utilisation(rows: Floats, outer: Floats, count: Floats | float, units: Floats) -> Floats:
    """Share of the compute units' time that does useful work, with the best tile."""
    best: Floats = np.zeros(1)
    for tile_rows, tile_columns, rate in TILES:
        for tall, wide in ((tile_rows, tile_columns), (tile_columns, tile_rows)):
            tiles = np.ceil(rows / tall) * np.ceil(outer / wide) * count
            waves = np.ceil(tiles / units)
            area = tall * wide * units * np.maximum(waves, 1.0)
            best = np.maximum(best, rate * rows * outer * count / area)
            if tall == wide:
                break
    return best


def alignment(size: Floats, width: Floats | float, penalty: Number) -> Floats:
    """1 for a size that is a multiple of 128 bytes, else less by `penalty`; twice for odd ones."""
    bytes_long = size * width
    coarse = np.where(np.mod(bytes_long, 128.0) == 0.0, 1.0, 1.0 - penalty)
    return np.where(np.mod(bytes_long, 16.0) == 0.0, coarse, (1.0 - penalty) ** 3)
