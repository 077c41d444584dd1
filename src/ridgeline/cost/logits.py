"""The output head and the loss: one product with the vocabulary, and softmax cross entropy.

A classifier multiplies one position of each sequence with its classes.

Time and traffic are those of the last pipeline stage. The cross entropy of fp32 logits reads and
writes each of them several times: cast up, maximum, exponential and sum, gradient, cast down.
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost.layouts import Floats
from ridgeline.cost.products import Product, seconds
from ridgeline.cost.setting import Setting

FUSED_BYTES = 14.0
"""Moved per logit by a fused cross entropy, forward and backward."""
EAGER_BYTES = 34.0
"""Moved per logit by separate kernels on an fp32 copy."""


def head_product(setting: Setting) -> Product:
    """The product with the (tensor-parallel) vocabulary or classes; it stays in 16 bits."""
    outputs = setting.dims.outputs / setting.layouts.tp
    return Product(
        name="head",
        rows=head_rows(setting),
        inner=setting.dims.hidden,
        outer=outputs,
        count=np.where(outputs > 0, 1.0, 0.0),
    )


def head_rows(setting: Setting) -> Floats:
    """Positions of one micro-batch that meet the head."""
    pooled = setting.dims.pooled > 0
    return np.where(pooled, setting.layouts.micro_batch, setting.tokens)


def head_seconds(setting: Setting, sixteen: Setting) -> dict[str, Floats]:
    """Products and cross entropy of one micro-batch, forward and backward together.

    `sixteen` is the setting with 16-bit products.
    """
    product = head_product(setting)
    weights = np.where(setting.software.frozen_weights, 0.0, 1.0)
    products = (
        seconds(sixteen, product, "forward")
        + seconds(sixteen, product, "dgrad")
        + weights * seconds(sixteen, product, "wgrad")
    )
    fused = setting.layouts.compiled | setting.software.fused_elementwise
    moved = product.rows * product.outer * np.where(fused, FUSED_BYTES, EAGER_BYTES)
    entropy = moved / (setting.site.memory_bytes_per_second * setting.rates.memory)
    return {"products": products, "entropy": entropy}
