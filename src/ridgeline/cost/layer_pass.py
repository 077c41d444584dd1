"""Compute time of a mean layer's forward and backward pass over one micro-batch.

A model's layers may differ (dense and expert MLPs, windows): every term is that of the mean layer,
so that a stage is layers / pp of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost import attention_kernel, elementwise, products
from ridgeline.cost.layouts import Floats
from ridgeline.cost.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPass:
    """Seconds by term."""

    forward: dict[str, Floats]
    backward: dict[str, Floats]


def layer_pass(setting: Setting) -> LayerPass:
    """Products, attention and element-wise work of the mean layer."""
    forward: Floats = np.zeros(1)
    backward: Floats = np.zeros(1)
    casts: Floats = np.zeros(1)
    trained = np.where(setting.software.frozen_weights, 0.0, 1.0)
    for product, share in layer_products(setting):
        forward = forward + share * products.seconds(setting, product, "forward")
        backward = backward + share * products.seconds(setting, product, "dgrad")
        backward = backward + share * trained * products.seconds(setting, product, "wgrad")
        casts = casts + share * products.cast_seconds(setting, product)
    attention = attention_kernel.kernel_seconds(setting)
    wise = elementwise.layer_seconds(setting)
    return LayerPass(
        forward={"gemm": forward, "attention": attention[0], "elementwise": wise[0] + casts},
        backward={"gemm": backward, "attention": attention[1], "elementwise": wise[1] + casts},
    )


def layer_products(setting: Setting) -> list[tuple[products.Product, Floats]]:
    """Products of the mean layer, each with the share of layers that has it."""
    dims, layouts, tokens = setting.dims, setting.layouts, setting.tokens
    moe = dims.moe_layers / dims.layers
    found = [(one, np.ones(1)) for one in products.attention_products(setting)]
    width = dims.ffn / layouts.tp
    found += [(one, 1.0 - moe) for one in products.mlp_products(dims, tokens, width, "mlp_")]
    if (dims.experts > 0).any():
        shared = dims.shared_ffn / layouts.tp
        found += [(one, moe) for one in products.mlp_products(dims, tokens, shared, "shared_")]
        found += [(one, moe) for one in products.expert_products(setting)]
    return found


def total(terms: Mapping[str, Floats]) -> Floats:
    """Sum of terms of different broadcastable lengths."""
    whole: Floats = np.zeros(1)
    for value in terms.values():
        whole = whole + value
    return whole


def in_sixteen_bits(setting: Setting) -> Setting:
    """The same setting with 16-bit products: logits stay in them."""
    return replace(
        setting,
        width=np.maximum(setting.width, 2.0),
        rates=replace(setting.rates, gemm=setting.rates.gemm_sixteen),
        site=replace(setting.site, peak=setting.site.peak_sixteen),
    )
