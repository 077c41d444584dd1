"""What a run is held against: the model's FLOPs per token, the device's peak, the memory predicted.

The terms of memory are those of `predict training`; what a device's context, communicators and
allocator take on top is left out, since the peak that is measured beside it does not see them.
"""

from __future__ import annotations

import torch

from ridgeline.cost.operators import model_operators
from ridgeline.errors import InputError
from ridgeline.hardware import cached_ceilings, match_reported_name
from ridgeline.models import load_model
from ridgeline.plan.training.estimate import predict_training
from ridgeline.plan.training.trained import Trained
from ridgeline.records.recipe import Recipe

_OVERHEAD = ("buffers", "slack")
_BY_16_BITS = ("activations", "recompute", "gathered")
"""What theory counts in two bytes an element; fp32 takes four."""
_ANY_DEVICE = "H100"
"""Tensors do not depend on the device; a cluster has to name one."""


def flops_per_token(recipe: Recipe) -> float | None:
    """Model FLOPs of training on one token: three times those of the forward pass.

    Matmuls and attention are counted, causal masks as half, recomputation not (the convention of
    MFU: Chowdhery et al., PaLM, arXiv 2204.02311, appendix B). None for tables and models that
    theory does not know, for images, and for adapters, whose frozen weights have no gradients.
    """
    if recipe.images is not None or recipe.adapter is not None:
        return None
    if not all(section.known_to_theory for section in recipe.sections):
        return None
    try:
        operators = model_operators(load_model(recipe.model.config), recipe.text.seq, 1)
    except InputError:
        return None
    forward = sum(one.count * one.flops for one in operators if one.direction == "forward")
    return 3.0 * forward / recipe.text.seq


def peak_flops_per_second(recipe: Recipe, device: torch.device) -> float | None:
    """Dense peak of this device in the run's precision; None where no fact or probe has it.

    Of a GPU, what its maker states; of the host, what `ridgeline hardware --probe` has seen.
    """
    precision = recipe.layout.precision
    if device.type == "cuda":
        facts = match_reported_name(torch.cuda.get_device_name(device))
        return None if facts is None else facts.peaks.get(precision)
    ceilings = cached_ceilings("cpu")
    return None if ceilings is None else ceilings.matmul_flops_per_second.get(precision)


def predicted_peak_bytes(recipe: Recipe) -> float | None:
    """The bytes of tensors on a rank of the fullest pipeline stage, at their peak.

    None for what theory does not cover, such as a teacher, adapters whose ranks are allocated, runs
    of blocks that recompute together, and a moving average of the weights.
    """
    covered = recipe.images is None and recipe.memory.recompute_runs == "blocks"
    covered = covered and not recipe.optimizer.ema
    if not covered or not all(section.known_to_theory for section in recipe.sections):
        return None
    layout = recipe.layout
    try:
        estimate = predict_training(
            recipe.model.config,
            f"{layout.num_devices}x{_ANY_DEVICE}",
            seq=recipe.text.seq,
            layout=layout,
            recompute_every=recipe.memory.recompute_every,
            trained=Trained(
                adapter=recipe.adapter,
                optimizer=recipe.optimizer.name,
                weights=recipe.precision.weights,
            ),
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
