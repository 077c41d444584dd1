"""The example once more, with other normal numbers: what is right on those of a usual size alone.

What `torch.randn` and its like draw is changed. Larger, it shows what overflows where nothing need
to: a softmax that takes no maximum off, a sigmoid by a power of what it is given. Results are then
looked at for NaN and infinity alone: how exact they are is another matter at such sizes. Small and
below zero, it shows a padding that is taken for a number: the largest of a row and of zeros is now
zero. Nothing is said where the numbers that kernels are given, or what is expected of them,
overflow as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from ridgeline.kernels.check.seen import SeenLaunch
from ridgeline.records.kernel_check import KernelFinding

TIMES: Final = 32.0
"""So that among a hundred normal numbers one is beyond 88, whose power no float32 holds."""
TIMES_ALLOWED: Final = 8.0
"""What errors may be more with small numbers, some of which cancel, than with usual ones."""
_MODERATE: Final = 1e6
"""Where more is expected, what leads to it may overflow in any computation."""
_NORMAL: Final = (torch.randn, torch.randn_like, torch.Tensor.normal_, torch.normal)


class OtherNumbers(TorchFunctionMode):
    """Changes what is drawn from a normal distribution, in place."""

    def __init__(self, change: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self._change = change

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in _NORMAL:
            with torch.no_grad():
                self._change(found)
        return found


def larger(drawn: torch.Tensor) -> None:
    """Numbers that are TIMES as large."""
    drawn.mul_(TIMES)


def small_and_negative(drawn: torch.Tensor) -> None:
    """Numbers below zero that are TIMES as small."""
    drawn.abs_().div_(-TIMES)


def overflows(
    compared: Sequence[tuple[torch.Tensor, ...]],
    now: Sequence[SeenLaunch],
    usual: Sequence[SeenLaunch],
    where: str,
) -> Iterator[KernelFinding]:
    """Results that are no numbers, with the larger ones alone.

    Args:
        compared: What the example returned with larger numbers.
        now: The launches of that run.
        usual: Those of the run before.
        where: The example's file.
    """
    if not comparable(now, usual):
        return
    for found, expected, *plain in compared:
        wanted = expected.detach().double()
        if found.shape != wanted.shape or not bool((wanted.abs() <= _MODERATE).all()):
            continue
        wrong = int((~found.detach().double().isfinite()).sum())
        if wrong and all(bool(one.double().isfinite().all()) for one in plain):
            yield KernelFinding(
                cause="overflow",
                kernel=kernel_of(now, found),
                summary=(
                    f"with normal numbers {TIMES:.0f} times as large, {wrong} of {found.numel()} "
                    "results are NaN or infinite, and none is expected to be"
                ),
                evidence={"results": wrong, "of_results": found.numel(), "times": TIMES},
                where=where,
                cure="take the largest off before a power, or raise to what cannot be positive",
            )


def kernel_of(launches: Sequence[SeenLaunch], found: torch.Tensor) -> str:
    """The last kernel that was given a result's memory, which no access says here."""
    return next(
        (one.kernel for one in reversed(launches) if _gave(one, found)), launches[-1].kernel
    )


def _gave(launch: SeenLaunch, found: torch.Tensor) -> bool:
    place = found.untyped_storage().data_ptr()
    return any(one.untyped_storage().data_ptr() == place for one in launch.tensors.values())


def comparable(later: Sequence[SeenLaunch], usual: Sequence[SeenLaunch]) -> bool:
    """Whether both runs launched alike, and kernels were given what float32 holds."""
    if [one.kernel for one in later] != [one.kernel for one in usual]:
        return False
    for at, (now, then) in enumerate(zip(later, usual, strict=True)):
        if any(one.dtype == torch.float16 for one in now.tensors.values()):
            return False
        for name in now.infinite - then.infinite:
            tensor = then.tensors.get(name)
            if tensor is None or not any(one.wrote_to(tensor) for one in usual[:at]):
                return False
    return True
