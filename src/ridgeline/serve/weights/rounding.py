"""Whether activations are rounded to int8 (`--weights w8a8`): as the CPU and the model allow.

Rows of activations get a step each, their largest number over 127.5. That costs little where the
numbers of a row are of like size; one that is a hundred times the others, as some models have in a
few channels, leaves the others few levels. So what the rounding does to the logits of two prompts
is computed when a model is first loaded, and one that suffers keeps 8-bit weights alone.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional

from ridgeline.checkpoints.layers import place_module
from ridgeline.errors import InputError
from ridgeline.kernels.cpu.compiler import settings
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.weights.layers import int8_layer
from ridgeline.serve.weights.linears import FrozenLinear

LARGEST_DIFFERENCE = 0.10
"""The mean distance of logits over their spread from which on activations are not rounded: what the
trial at load grants to bfloat16."""

NO_BYTES = "kernels for this CPU have no products of bytes (VNNI, AMX, dotprod)"


def as_multiplied(config: EngineConfig, device: torch.device) -> EngineConfig:
    """A configuration with the weights that this device multiplies.

    Raises:
        InputError: It asks for rounded activations on a GPU.
    """
    if config.weights != "w8a8":
        return config
    if device.type != "cpu":
        raise InputError(
            f"--weights w8a8: rounds activations on CPUs alone, and this is {device.type}; use"
            " --weights fp8 or int8"
        )
    if settings().multiplies_bytes:
        return config
    _say(f"{NO_BYTES}, so activations stay as they are")
    return replace(config, weights="int8")


def has_rounded(model: nn.Module) -> bool:
    """Whether a model has layers that round their activations."""
    return any(True for _ in _rounding(model))


def say_too_coarse(difference: float) -> None:
    """Say that a model keeps 8-bit weights alone."""
    _say(f"{too_coarse(difference)}, so they stay as they are")


def too_coarse(difference: float) -> str:
    """Why activations are not rounded, where that moves logits by more than is granted."""
    return (
        f"rounded activations move this model's logits by {difference:.2f} of their spread (limit"
        f" {LARGEST_DIFFERENCE:.2f})"
    )


@contextlib.contextmanager
def unrounded(model: nn.Module) -> Iterator[None]:
    """Within, layers multiply the same levels by activations as they are."""
    changed = [module for _, module in _rounding(model)]
    for module in changed:
        weight = module.dequantised()
        bias = module.bias
        module.forward = lambda x, weight=weight, bias=bias: functional.linear(  # type: ignore[method-assign,misc]
            x.float(), weight, bias
        ).to(x.dtype)
    try:
        yield
    finally:
        for module in changed:
            del module.forward


def keep_weights_alone(model: nn.Module, dtype: torch.dtype) -> None:
    """Put layers of 8-bit weights, of the same levels, in place of those that round activations."""
    for name, module in list(_rounding(model)):
        scales = module.get_buffer("scales").flatten()[: module.out_features, None].contiguous()
        levels = (module.dequantised() / scales).round().to(torch.int8)
        place_module(model, name, int8_layer(levels, scales, None, module.bias, dtype))


def _rounding(model: nn.Module) -> Iterator[tuple[str, FrozenLinear]]:
    """The layers that round their activations, by name."""
    for name, module in model.named_modules():
        if isinstance(module, FrozenLinear) and module.rounds:
            yield name, module


def _say(why: str) -> None:
    sys.stderr.write(f"ridgeline: --weights w8a8: {why}; weights are held as with int8\n")
