"""A module brought to fewer channels: shapes of its tensors, and what its parts count.

Saved models carry a copy of this file, so that transformers can load them: it imports torch alone.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def resize(model: nn.Module, channels: Mapping[str, Mapping[str, Any]]) -> None:
    """Give tensors other shapes and modules other counts; the tensors' values are lost.

    Args:
        model: As its class builds it.
        channels: "shapes": name of a parameter or buffer → its shape; "counts": name of a module →
            attribute → its value.
    """
    for name, shape in channels["shapes"].items():
        replace(model, name, torch.empty(shape, dtype=_get(model, name).dtype, device="meta"))
    for name, counts in channels["counts"].items():
        for attribute, value in counts.items():
            setattr(model.get_submodule(name), attribute, value)


def replace(model: nn.Module, name: str, value: Tensor) -> None:
    """Put a tensor where a parameter or buffer was, in all modules that share it.

    A value on the meta device only says the shape; the new tensor lies where the old one did.
    """
    old = _get(model, name)
    if value.is_meta:
        value = torch.zeros(value.shape, dtype=value.dtype, device=old.device)
    if isinstance(old, nn.Parameter):
        value = nn.Parameter(value, requires_grad=old.requires_grad)
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for leaf, one in held.items():
                if one is old:
                    held[leaf] = value


def _get(model: nn.Module, name: str) -> Tensor:
    owner, _, leaf = name.rpartition(".")
    return getattr(model.get_submodule(owner), leaf)


class Resized:
    """Mixed into a class of transformers: builds it with the widths that config.json says."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        resize(self, config.channels)  # type: ignore[arg-type]
