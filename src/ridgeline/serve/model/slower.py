"""Why a loaded model is computed on a slower path than there is, for operators to read."""

from __future__ import annotations

from torch import nn

from ridgeline.serve.config import EngineConfig
from ridgeline.serve.weights.experts import why_numbers
from ridgeline.serve.weights.rounding import LARGEST_DIFFERENCE, NO_BYTES, too_coarse


def slower_paths(
    asked: EngineConfig, config: EngineConfig, model: nn.Module, rounding: float | None
) -> tuple[str, ...]:
    """What is slower than it might be, a line each.

    Args:
        asked: The configuration as the user gave it.
        config: The same with the weights that this device multiplies.
        model: With its layers replaced.
        rounding: What rounding activations moves logits by; None: they were not tried.
    """
    found = []
    numbers = why_numbers(model, config)
    if numbers is not None:
        found.append(f"experts as numbers: {numbers}")
    if asked.weights != config.weights:
        found.append(f"activations as they are: {NO_BYTES}")
    elif rounding is not None and rounding > LARGEST_DIFFERENCE:
        found.append(f"activations as they are: {too_coarse(rounding)}")
    return tuple(found)
