"""The example once more, with rows that lie further apart: which strides a kernel mixes up.

In most examples tensors of one shape have the same strides, which are also their sizes, so that a
kernel may take any of them for another. Here each tensor that `torch.randn` and its like draw is a
part of a wider one, each of another width. Nothing is said where the example refuses that, or where
a kernel is not told the stride: it may rely on a layout that its wrapper promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from ridgeline.kernels.check.seen import SeenLaunch

_DRAWS: Final = (torch.randn, torch.randn_like, torch.rand, torch.rand_like, torch.randint)
_COPIES: Final = (
    torch.Tensor.bfloat16, torch.Tensor.half, torch.Tensor.float, torch.Tensor.to,
    torch.Tensor.cuda, torch.Tensor.clone,
)  # fmt: skip
"""What gives a tensor of another layout than it was given, where rows lie apart."""
_STEP: Final = 8
"""Elements by which each tensor is wider than the one before; so what is aligned stays so."""


class OtherLayouts(TorchFunctionMode):
    """Gives what is drawn rows that lie apart.

    Args:
        alone: The number of the one tensor that is laid out so, from 0; None: every one.
    """

    def __init__(self, alone: int | None = None) -> None:
        super().__init__()
        self.steps: dict[int, int] = {}
        """From one row to the next, in elements, of each storage that was made, by its address."""
        self.drawn = 0
        """Tensors that could be laid out so."""
        self._alone = alone
        self._kept: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        copied = func in _COPIES and _place(args[0]) in self.steps
        if not (func in _DRAWS or copied) or not _has_rows(found):
            return found
        if not copied:
            self.drawn += 1
            if self._alone not in (None, self.drawn - 1):
                return found
        return self._apart(found)

    def _apart(self, tensor: torch.Tensor) -> torch.Tensor:
        size = tensor.shape[-1]
        step = size + _STEP * (len(self.steps) + 1)
        with torch.no_grad():
            wide = tensor.new_zeros(*tensor.shape[:-1], step)
            rows = wide[..., :size]
            rows.copy_(tensor)
        self.steps[_place(wide)] = step
        self._kept.append(wide)
        return rows.requires_grad_(tensor.requires_grad)


def _has_rows(value: Any) -> bool:
    """Whether a value is a tensor of several rows, each behind the other; a result has no grad."""
    return (
        isinstance(value, torch.Tensor)
        and value.dim() > 1
        and value.shape[-1] > 1
        and value.numel() > value.shape[-1]
        and value.is_contiguous()
        and value.grad_fn is None
    )


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def told(
    launches: Sequence[SeenLaunch], usual: Sequence[SeenLaunch], steps: dict[int, int]
) -> bool:
    """Whether any kernel got rows that lie apart, and each that did was told by how much.

    What a kernel is given in the usual run as well says nothing of it.
    """
    any_of_them = False
    for launch, before in zip(launches, usual, strict=True):
        given = _numbers(launch) - _numbers(before)
        for tensor in launch.tensors.values():
            step = steps.get(_place(tensor))
            if step is None or tensor.is_contiguous():
                continue
            if step not in given:
                return False
            any_of_them = True
    return any_of_them


def _numbers(launch: SeenLaunch) -> set[int]:
    return {one for one in launch.arguments.values() if type(one) is int}
