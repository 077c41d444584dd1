"""Each call of a model made again and again, for scripts that call it too few times to be timed.

A demo infers two images and ends. Nothing can be told of two calls, but each may be made fifty
times more on copies of what it was given: every one of them is a step. The script gets what its own
call returned, and the state of random numbers that this left. A call that returns something else
when it is made once more (it draws, it counts, it fills a cache) is not repeated, nor is one that
cannot be compared.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from ridgeline.measure.child.guard import attempt, tell
from ridgeline.measure.child.inputs import tensors_within

if TYPE_CHECKING:
    from ridgeline.measure.child.agent import Agent

_MOST_BYTES = 2**30
"""What is given to a call may be copied if it is no larger."""
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4
"""How far an output may be from the one before, and how far in terms of the largest element."""


class RepeatedCalls:
    """Repeats the calls of a script's main model.

    Args:
        times: How often each call is made once more.
    """

    def __init__(self, times: int) -> None:
        self._times = times
        self._is_repeating = False

    def follow(
        self,
        agent: Agent,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """An outermost call has returned `result` to the script: make it again if it is a step."""
        if self._is_repeating or not self._times or result is None:
            return
        if not (agent.active and agent.kind == "inference" and agent.watched.main.is_it(module)):
            return
        given = attempt(_copied, (args, kwargs), otherwise=None)
        if given is None:
            self._end(module, "what it is given cannot be copied")
            return
        self._is_repeating = True
        try:
            with _same_random_numbers():
                self._repeat(module, given, result)
        except Exception as error:  # of a call that the script did not make
            self._end(module, f"made once more it fails ({type(error).__name__})")
        finally:
            self._is_repeating = False

    def _repeat(
        self, module: nn.Module, given: tuple[tuple[Any, ...], dict[str, Any]], result: Any
    ) -> None:
        args, kwargs = given
        for time in range(self._times):
            again = module(*args, **kwargs)
            if time == 0 and not attempt(_are_alike, result, again, otherwise=False):
                self._end(module, "made once more, it returns something else or no tensors")
                return

    def _end(self, module: nn.Module, why: str) -> None:
        self._times = 0
        tell(f"calls of {type(module).__name__} are not repeated: {why}")


def _copied(given: tuple[Any, ...]) -> Any:
    """A copy of everything that a call was given; None where that is too large."""
    if sum(one.numel() * one.element_size() for one in tensors_within(given)) > _MOST_BYTES:
        return None
    with torch.no_grad(), _disable_current_modes():
        return copy.deepcopy(given)


def _are_alike(first: Any, second: Any) -> bool:
    """Do two results hold the same numbers, up to rounding? Not, where they hold none."""
    before, after = tensors_within(first), tensors_within(second)
    if not before or len(before) != len(after):
        return False
    with torch.no_grad(), _disable_current_modes():
        return all(_is_near(*pair) for pair in zip(before, after, strict=True))


def _is_near(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not first.is_floating_point() or not first.numel():
        return torch.equal(first, second)
    largest = float(first.abs().nan_to_num().max())
    return torch.allclose(first, second, rtol=_RELATIVE, atol=_ABSOLUTE * largest, equal_nan=True)


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Leave every generator that the script may draw from as it is now."""
    state, python = torch.get_rng_state(), random.getstate()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    numpy = sys.modules.get("numpy")
    arrays = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        torch.set_rng_state(state)
        random.setstate(python)
        if devices:
            torch.cuda.set_rng_state_all(devices)
        if numpy is not None:
            numpy.random.set_state(arrays)
