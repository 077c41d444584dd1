"""A module that computes in float16 and is called with float32, as it was before.

Autocast would keep norms and softmax in float32, but its casts do not survive the way to ONNX
(torch 2.13: convolutions come out with operands of two dtypes).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.runtimes.capture.structure import flatten, unflatten


class HalfPrecision(nn.Module):  # type: ignore[misc]
    """A copy with weights in float16; tensors are cast on their way in and out."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = copy.deepcopy(module).half()
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns, in float32."""
        called, names = _cast((args, kwargs), torch.float32, torch.float16)
        return _cast(self.module(*called, **names), torch.float16, torch.float32)


def _cast(of: Any, given: torch.dtype, wanted: torch.dtype) -> Any:
    tensors, structure = flatten(of)
    cast: list[Tensor] = [one.to(wanted) if one.dtype is given else one for one in tensors]
    return unflatten(structure, cast)
