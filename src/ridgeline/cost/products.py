"""The matrix products of a transformer layer and of its output head, on one device.

Shapes follow Megatron-LM's split (Shoeybi et al., arXiv 1909.08053, section 3): query, key, value
and up projections are cut by columns, output and down projections by rows, so that each device of
a tensor-parallel group has 1/tp of every product. Routed experts see their share of the routed
tokens: tokens · top_k / experts per expert when the router is balanced, over tokens of the `ep`
ranks. The backward pass has two products of the same FLOPs for each: one for the input's
gradient, one for the weight's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.cost.dimensions import Dimensions
from ridgeline.cost.gemm import alignment, gemm_bytes, gemm_flops, utilisation
from ridgeline.cost.layouts import Floats
from ridgeline.cost.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """`count` products (rows x inner) · (inner x outer) of one layer's forward pass."""

    name: str
    rows: Floats
    inner: Floats
    outer: Floats
    count: Floats
    """Independent products of this shape in one launch; 0 where the model has none."""
    grouped: bool = False
    """Many small products in one launch: routed experts. One expert alone is a dense product."""

    @property
    def flops(self) -> Floats:
        """Of the forward pass."""
        return self.count * gemm_flops(self.rows, self.outer, self.inner)


def attention_products(setting: Setting) -> list[Product]:
    """Projections of one attention block."""
    dims, tokens, tp = setting.dims, setting.tokens, setting.layouts.tp
    latent = dims.kv_rank > 0
    ordinary = np.where(latent, 0.0, 1.0)
    compressed = np.where(dims.q_rank > 0, 1.0, 0.0)
    fused = dims.query_width + dims.key_width + dims.value_width
    nope = dims.qk_dim - dims.rope_dim
    one = np.ones(1)
    products = [
        Product(name="qkv", rows=tokens, inner=dims.hidden, outer=fused / tp, count=ordinary)
    ]
    if latent.any():
        kv_up = dims.heads * (nope + dims.value_dim) / tp
        kv_down = dims.kv_rank + dims.rope_dim
        query_in = np.where(dims.q_rank > 0, dims.q_rank, dims.hidden)
        is_latent = np.where(latent, 1.0, 0.0)
        products += [
            Product(
                name="q_down", rows=tokens, inner=dims.hidden, outer=dims.q_rank, count=compressed
            ),
            Product(
                name="q_up",
                rows=tokens,
                inner=query_in,
                outer=dims.query_width / tp,
                count=is_latent,
            ),
            Product(name="kv_down", rows=tokens, inner=dims.hidden, outer=kv_down, count=is_latent),
            Product(name="kv_up", rows=tokens, inner=dims.kv_rank, outer=kv_up, count=is_latent),
        ]
    out = dims.output_width / tp
    products.append(Product(name="out", rows=tokens, inner=out, outer=dims.hidden, count=one))
    return products


def mlp_products(dims: Dimensions, tokens: Floats, width: Floats, tag: str) -> list[Product]:
    """Up (and gate, in one product) and down projection of an MLP of this width per device."""
    count = np.where(width > 0, 1.0, 0.0)
    up = dims.gates * width
    return [
        Product(name=f"{tag}up", rows=tokens, inner=dims.hidden, outer=up, count=count),
        Product(name=f"{tag}down", rows=tokens, inner=width, outer=dims.hidden, count=count),
    ]


def expert_products(setting: Setting) -> list[Product]:
    """Routed experts of one layer on one device: experts/ep products over all routed tokens."""
    dims, tokens = setting.dims, setting.routed_tokens
    ep, etp = setting.layouts.ep, setting.layouts.etp
    experts = np.maximum(dims.experts, 1.0)
    local = np.where(dims.experts > 0, np.maximum(dims.experts / ep, 1.0), 0.0)
    rows = tokens * ep * dims.top_k / experts
    width = dims.expert_ffn / etp
    up = dims.gates * width
    return [
        Product(
            name="expert_up", rows=rows, inner=dims.hidden, outer=up, count=local, grouped=True
        ),
        Product(
            name="expert_down", rows=rows, inner=width, outer=dims.hidden, count=local, grouped=True
        ),
    ]


def seconds(setting: Setting, product: Product, phase: str) -> Floats:
    """Time of a product's forward, of its input's gradient (`dgrad`) or its weight's (`wgrad`)."""
    rows, outer, inner = {
        "forward": (product.rows, product.outer, product.inner),
        "dgrad": (product.rows, product.inner, product.outer),
        "wgrad": (product.inner, product.outer, product.rows),
    }[phase]
    rates, site, width = setting.rates, setting.site, setting.width
    half = rates.gemm_half_depth
    rate = rates.gemm * utilisation(rows, outer, product.count, site.units)
    rate = rate * inner / (inner + half * 2.0 / width)
    rate = rate * alignment(product.inner, width, rates.misalignment)
    rate = rate * alignment(product.outer, width, rates.misalignment)
    if product.grouped:
        rate = rate * np.where(product.count > 1.0, rates.expert_gemm, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        compute = product.flops / (site.peak * rate)
    traffic = product.count * gemm_bytes(rows, outer, inner, width)
    moved = traffic / (site.memory_bytes_per_second * rates.memory)
    return np.where(product.count > 0, np.maximum(compute, moved), 0.0)


def cast_seconds(setting: Setting, product: Product) -> Floats:
    """Casting the operands of a low-precision product: read 16 bits, write 8 or 4, twice over.

    Both layouts of each operand are needed, one forward and one backward (Micikevicius et al.,
    "FP8 formats for deep learning", arXiv 2209.05433).
    """
    low = np.where(setting.width < 2.0, 1.0, 0.0)
    elements = product.count * product.rows * (product.inner + product.outer)
    moved = low * elements * 2.0 * setting.rates.cast_traffic
    return moved / (setting.site.memory_bytes_per_second * setting.rates.memory)
