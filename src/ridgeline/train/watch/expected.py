"""What a run's speed is held against: the model's FLOPs per token and the device's peak."""

from __future__ import annotations

import torch

from ridgeline.cost.operators import model_operators
from ridgeline.errors import InputError
from ridgeline.hardware import cached_ceilings, match_reported_name
from ridgeline.models import load_model
from ridgeline.records.recipe import Recipe


def flops_per_token(recipe: Recipe) -> float | None:
    """Model FLOPs of training on one token: three times those of the forward pass.

    Products and attention are counted, causal masks as half, recomputation not (the convention of
    MFU: Chowdhery et al., PaLM, arXiv 2204.02311, appendix B). None for an adapter, whose frozen
    weights have no gradient products, and for models that theory does not know.
    """
    if recipe.adapter is not None or recipe.distillation is not None:
        return None
    try:
        operators = model_operators(load_model(recipe.model.config), recipe.data.seq, 1)
    except InputError:
        return None
    forward = sum(one.count * one.flops for one in operators if one.direction == "forward")
    return 3.0 * forward / recipe.data.seq


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
