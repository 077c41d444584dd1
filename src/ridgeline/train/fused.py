"""Norms, gated MLPs and rotary embeddings of a rank's model by fused kernels (`run.kernels`).

It comes after the weights are there, since a module is taken where it and its kernel agree on
numbers, and before gradients are shared. Sharded weights are not where kernels look for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn

from ridgeline.errors import InputError
from ridgeline.kernels.fused_modules import fuse_modules
from ridgeline.kernels.triton import takes
from ridgeline.records.recipe import Recipe


def use_fused_kernels(modules: Sequence[nn.Module], recipe: Recipe) -> Counter[str]:
    """Redirect calls of a model's modules where the recipe wants it; how many of which kind.

    Raises:
        InputError: No GPU, or nothing of the model can be taken.
    """
    found: Counter[str] = Counter()
    if recipe.run.kernels != "fused":
        return found
    if not all(takes(parameter) for module in modules for parameter in module.parameters()):
        raise InputError(
            'recipe: run.kernels "fused" needs a GPU, and the model is on the CPU; leave it out'
        )
    for module in modules:
        found += fuse_modules(module, losses=False)[0]
    if not found:
        raise InputError(
            'recipe: run.kernels "fused" finds no norm, gated MLP or rotary embedding that it'
            " can take (sharded weights are none); leave it out"
        )
    return found
