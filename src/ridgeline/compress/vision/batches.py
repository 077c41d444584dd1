"""Batches of what a vision model takes: a tensor of images, or a tensor for each argument.

images [n, channels, height, width]
(images [n, cameras, channels, height, width], intrinsics [n, cameras, 3, 3], …)
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Batch: TypeAlias = Tensor | tuple[Tensor, ...]


def inputs_of(batch: Batch) -> tuple[Tensor, ...]:
    """The tensors of a batch as a model is called with them.

    >>> len(inputs_of(torch.ones(2, 3))), len(inputs_of((torch.ones(2), torch.ones(2))))
    (1, 2)
    """
    return (batch,) if isinstance(batch, Tensor) else batch


def rows_of(batch: Batch) -> int:
    """How many images, or samples, a batch holds."""
    return len(inputs_of(batch)[0])


def part_of(batch: Batch, chosen: slice) -> Batch:
    """Some samples of a batch.

    >>> part_of(torch.arange(5), slice(3))
    tensor([0, 1, 2])
    """
    if isinstance(batch, Tensor):
        return batch[chosen]
    return tuple(one[chosen] for one in batch)


def together(batches: Sequence[Batch]) -> Batch:
    """All samples of batches alike as one batch."""
    if isinstance(batches[0], Tensor):
        return torch.cat([one for one in batches if isinstance(one, Tensor)])
    return tuple(torch.cat(column) for column in zip(*map(inputs_of, batches), strict=True))


def moved(batch: Batch, like: Tensor) -> tuple[Tensor, ...]:
    """The inputs where a model's weights are, floating-point ones in their number format."""
    return tuple(
        one.to(like.device, like.dtype) if one.is_floating_point() else one.to(like.device)
        for one in inputs_of(batch)
    )


def free_batch(module: nn.Module, batch: Batch, dim: Any) -> Any:
    """The dynamic shapes that leave the first dimension of every input free.

    Args:
        module: About to be exported.
        batch: Its example.
        dim: `torch.export.Dim.AUTO` or `DYNAMIC`.
    """
    shapes = tuple({0: dim} for _ in inputs_of(batch))
    parameters = list(inspect.signature(module.forward).parameters.values())
    gathers = bool(parameters) and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL
    return (shapes,) if gathers else shapes
