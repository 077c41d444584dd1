"""What theory says a rank of this recipe will hold at its peak, in tensors.

The terms are those of `predict training`; what a device's context, communicators and allocator
take on top is left out, since the peak that is measured beside it does not see them either.
"""

from __future__ import annotations

from ridgeline.errors import InputError
from ridgeline.plan.training.estimate import predict_training
from ridgeline.records.recipe import Recipe

_OVERHEAD = ("buffers", "slack")
_BY_16_BITS = ("activations", "recompute", "gathered")
"""What theory counts in two bytes an element; fp32 takes four."""
_ANY_DEVICE = "H100"
"""Tensors do not depend on the device; a cluster has to name one."""


def predicted_peak_bytes(recipe: Recipe) -> float | None:
    """Of the fullest pipeline stage; None for what theory does not cover.

    That is adapters, distillation and optimizers that keep other states than AdamW.
    """
    covered = recipe.optimizer.name == "adamw" and not recipe.optimizer.ema
    if not covered or recipe.adapter is not None or recipe.distillation is not None:
        return None
    layout = recipe.layout
    try:
        estimate = predict_training(
            recipe.model.config,
            f"{layout.num_devices}x{_ANY_DEVICE}",
            seq=recipe.data.seq,
            layout=layout,
        )
    except InputError:
        return None
    wide = 2.0 if layout.precision == "fp32" else 1.0
    return max(
        sum(
            bytes_ * (wide if term in _BY_16_BITS else 1.0)
            for term, bytes_ in stage.terms.items()
            if term not in _OVERHEAD
        )
        for stage in estimate.memory.stages
    )
