"""The output head and the loss: one matmul with the vocabulary, and softmax cross entropy.

A classifier multiplies one position of each sequence with its classes.

Time and traffic are those of the last pipeline stage. The cross entropy of fp32 logits reads and
writes each of them several times: cast up, maximum, exponential and sum, gradient, cast down.
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost.arrays import Bools, Floats
from ridgeline.cost.training.matmuls import Matmul, matmul_seconds
from ridgeline.cost.training.setting import Setting

FUSED_BYTES = 14.0
"""Moved per logit by a fused cross entropy, forward and backward."""
EAGER_BYTES = 34.0
"""Moved per logit by separate kernels on an fp32 copy."""


def head_matmul(setting: Setting) -> Matmul:
    """The matmul with the (tensor-parallel) vocabulary or classes; it stays in 16 bits."""
    outputs = setting.dims.outputs / setting.layouts.tp
    return Matmul(
        name="head",
        rows=head_rows(setting),
        inner=setting.dims.hidden,
        outer=outputs,
        count=np.where(outputs > 0, 1.0, 0.0),
    )


def fused_loss(setting: Setting) -> Bools:
    """Where the cross entropy is one chain, by a compiler or by hand, and not separate kernels."""
    software = setting.software
    compiled = setting.layouts.compiled & np.logical_not(software.eager_loss)
    by_hand = np.logical_or(software.fused_elementwise, software.own_loss)
    return np.asarray(compiled | by_hand, dtype=np.bool_)


def head_rows(setting: Setting) -> Floats:
    """Positions of one micro-batch that meet the head."""
    pooled = setting.dims.pooled > 0
    return np.where(pooled, setting.layouts.micro_batch, setting.tokens)


def head_seconds(setting: Setting, sixteen: Setting) -> dict[str, Floats]:
    """Matmuls and cross entropy of one micro-batch, forward and backward together.

    `sixteen` is the setting with 16-bit matmuls.
    """
    matmul = head_matmul(setting)
    weights = np.where(setting.frozen_weights, 0.0, 1.0)
    matmuls = (
        matmul_seconds(sixteen, matmul, "forward")
        + matmul_seconds(sixteen, matmul, "dgrad")
        + weights * matmul_seconds(sixteen, matmul, "wgrad")
    )
    moved = matmul.rows * matmul.outer * np.where(fused_loss(setting), FUSED_BYTES, EAGER_BYTES)
    entropy = moved / (setting.site.memory_bytes_per_second * setting.rates.memory)
    return {"matmuls": matmuls, "entropy": entropy}
