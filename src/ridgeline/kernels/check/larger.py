"""The example once more, with normal numbers that are larger: what overflows where nothing need to.

A softmax that takes no maximum off, or a sigmoid by a power of what it is given, is right on
numbers of a usual size. So what `torch.randn` and its like draw is multiplied, and results are
looked at for NaN and infinity alone: how exact they are is another matter at such sizes. Nothing is
said where the numbers that kernels are given, or what is expected of them, overflow as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from ridgeline.kernels.check.seen import SeenLaunch
from ridgeline.records.kernel_check import KernelFinding

TIMES: Final = 32.0
"""So that among a hundred normal numbers one is beyond 88, whose power no float32 holds."""
_MODERATE: Final = 1e6
"""Where more is expected, what leads to it may overflow in any computation."""
_NORMAL: Final = (torch.randn, torch.randn_like, torch.Tensor.normal_, torch.normal)


class LargerNumbers(TorchFunctionMode):
    """Multiplies what is drawn from a normal distribution."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _NORMAL:
            with torch.no_grad():
                found.mul_(TIMES)
        return found


def overflows(
    compared: Sequence[tuple[torch.Tensor, ...]],
    larger: Sequence[SeenLaunch],
    usual: Sequence[SeenLaunch],
    where: str,
) -> Iterator[KernelFinding]:
    """Results that are no numbers, with the larger ones alone.

    Args:
        compared: What the example returned with larger numbers.
        larger: The launches of that run.
        usual: Those of the run before.
        where: The example's file.
    """
    if not _comparable(larger, usual):
        return
    for found, expected, *plain in compared:
        wanted = expected.detach().double()
        if found.shape != wanted.shape or not bool((wanted.abs() <= _MODERATE).all()):
            continue
        wrong = int((~found.detach().double().isfinite()).sum())
        if wrong and all(bool(one.double().isfinite().all()) for one in plain):
            # Memory may lie elsewhere now, so the kernel is told from what it was called with.
            kernel = next((one.kernel for one in reversed(larger) if _gave(one, found)), "")
            yield KernelFinding(
                cause="overflow",
                kernel=kernel or larger[-1].kernel,
                summary=(
                    f"with normal numbers {TIMES:.0f} times as large, {wrong} of {found.numel()} "
                    "results are NaN or infinite, and none is expected to be"
                ),
                evidence={"results": wrong, "of_results": found.numel(), "times": TIMES},
                where=where,
                cure="take the largest off before a power, or raise to what cannot be positive",
            )


def _gave(launch: SeenLaunch, found: torch.Tensor) -> bool:
    place = found.untyped_storage().data_ptr()
    return any(one.untyped_storage().data_ptr() == place for one in launch.tensors.values())


def _comparable(larger: Sequence[SeenLaunch], usual: Sequence[SeenLaunch]) -> bool:
    """Whether both runs launched alike, and kernels were given what float32 holds."""
    if [one.kernel for one in larger] != [one.kernel for one in usual]:
        return False
    for at, (now, then) in enumerate(zip(larger, usual, strict=True)):
        if any(one.dtype == torch.float16 for one in now.tensors.values()):
            return False
        for name in now.infinite - then.infinite:
            tensor = then.tensors.get(name)
            if tensor is None or not any(one.wrote_to(tensor) for one in usual[:at]):
                return False
    return True
