"""Bytes per parameter of training states, by recipe, and what ZeRO leaves on each device.

    mixed precision with Adam: 2 (weights) + 2 (gradients) + 12 (fp32 weights, two moments) = 16
    ZeRO over N ranks: stage 1 shards the 12, stage 2 the gradients too, stage 3 everything
                                        Rajbhandari et al., 1910.02054, sections 3.1 and 5

Activations, buffers and fragmentation come on top: `memory.py` estimates a whole run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ridgeline.errors import InputError

Stage = Literal[0, 1, 2, 3]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """The bytes of each state per parameter."""

    weights: float
    gradients: float
    master: float
    """Bytes of a copy in higher precision that the optimizer updates; 0: there is none."""
    optimizer: float
    """Bytes of the optimizer's own state."""

    @property
    def total(self) -> float:
        """Bytes of all states together."""
        return self.weights + self.gradients + self.master + self.optimizer


RECIPES = {
    "fp32 adam": StateBytes(weights=4, gradients=4, master=0, optimizer=8),
    "mixed adam": StateBytes(weights=2, gradients=2, master=4, optimizer=8),
    "mixed adam, fp32 gradients": StateBytes(weights=2, gradients=4, master=4, optimizer=8),
    "fp8 adam": StateBytes(weights=3, gradients=4, master=4, optimizer=8),
    "pure bf16 adam": StateBytes(weights=2, gradients=2, master=0, optimizer=4),
    "mixed 8-bit adam": StateBytes(weights=2, gradients=2, master=4, optimizer=2),
    "mixed sgd with momentum": StateBytes(weights=2, gradients=2, master=4, optimizer=4),
    "frozen 16-bit": StateBytes(weights=2, gradients=0, master=0, optimizer=0),
}
"""Recipe → its states. `mixed adam` is the paper's (fp16 gradients); Megatron-LM accumulates in
fp32. torch.autocast is `fp32 adam` here: it keeps fp32 weights and casts on the fly. fp8 training
as Transformer Engine does it keeps 16-bit weights beside the fp8 copy: memory grows, matmuls get
faster. 8-bit Adam: Dettmers et al., 2110.02861. `frozen 16-bit`: the base under adapters."""


def recipe(name: str) -> StateBytes:
    """The states of the recipe called `name`.

    Raises:
        InputError: There is no such recipe.
    """
    if name not in RECIPES:
        raise InputError(f"recipe {name!r}: use one of {'; '.join(RECIPES)}")
    return RECIPES[name]


def static_bytes(num_parameters: float, recipe: StateBytes) -> float:
    """On one device that shards nothing.

    >>> static_bytes(7e9, RECIPES["mixed adam"]) / 1e9
    112.0
    """
    return num_parameters * recipe.total


def zero_bytes(num_parameters: float, recipe: StateBytes, stage: Stage, num_ranks: int) -> float:
    """On each device under ZeRO, or FSDP (which is stage 3).

    >>> [round(zero_bytes(7.5e9, RECIPES["mixed adam"], stage, 64) / 1e9, 1) for stage in range(4)]
    [120.0, 31.4, 16.6, 1.9]
    """
    if num_ranks < 1:
        raise ValueError(f"ZeRO needs at least one rank, not {num_ranks}")
    states = recipe.master + recipe.optimizer
    per_parameter = (
        recipe.weights / (num_ranks if stage >= 3 else 1)
        + recipe.gradients / (num_ranks if stage >= 2 else 1)
        + states / (num_ranks if stage >= 1 else 1)
    )
    return num_parameters * per_parameter


def zero_saving(recipe: StateBytes, stage: Stage, num_ranks: int) -> float:
    """How many times less a device holds than without sharding.

    >>> [round(zero_saving(RECIPES["mixed adam"], stage, 64), 2) for stage in (1, 2, 3)]
    [3.82, 7.21, 64.0]
    """
    return recipe.total / zero_bytes(1.0, recipe, stage, num_ranks)


def activation_bytes(
    batch: int, seq: int, hidden: int, layers: int, bytes_per_element: float
) -> float:
    """Kept for the backward pass when a layer keeps `bytes_per_element` per token and channel.

    34 for a GPT layer with dropout and fused attention, 5 · heads · seq / hidden more with the
    scores kept, 2 with full recomputation (Korthikanti et al., 2205.05198, sections 4 and 5).

    >>> activation_bytes(4, 4096, 5120, 40, 2) / 1e9
    6.7108864
    """
    return float(batch) * seq * hidden * layers * bytes_per_element
