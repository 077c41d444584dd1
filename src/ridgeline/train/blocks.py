"""The repeated blocks of a language model: what is recomputed, compiled and sharded one by one."""

from __future__ import annotations

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from ridgeline.errors import InputError


def blocks_of(part: nn.Module) -> list[nn.Module]:
    """The transformer layers of a model or of a pipeline stage, in order; may be empty there.

    They are the modules that transformers itself can recompute one by one, outermost first.
    """
    found: list[nn.Module] = []
    stack = [part]
    while stack:
        module = stack.pop(0)
        if isinstance(module, GradientCheckpointingLayer):
            found.append(module)
        else:
            stack[:0] = list(module.children())
    return found


def require_blocks(part: nn.Module, purpose: str) -> list[nn.Module]:
    """The same blocks where there must be some; an InputError says what cannot be done."""
    found = blocks_of(part)
    if not found:
        raise InputError(
            f"{type(part).__name__}: no repeated layers that transformers can recompute one by"
            f" one, which {purpose} needs; leave it out for this model"
        )
    return found
