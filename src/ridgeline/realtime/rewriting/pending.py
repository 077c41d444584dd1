"""Calls of one module that wait until somebody looks at an answer, and are computed as one batch.

A loop over cameras, `[backbone(image) for image in images]`, looks at no answer before the loop has
ended. Each call returns a `PendingTensor` at once; the first operation on any of them computes all
that wait: inputs concatenated along the first dimension, one call, the answer split again. What is
looked at early is computed early, so a loop in which each call needs the last answer stays right
and gains nothing. (Deferred evaluation as in Neubig et al., "On-the-fly operation batching in
dynamic computation graphs", NeurIPS 2017.)
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ridgeline.realtime.rewriting.settle import PendingValue, settled
from ridgeline.runtimes.capture.structure import Structure, UnknownStructure, flatten, unflatten

Inner = Callable[..., Any]
_ASKS_ONLY = {
    Tensor.shape.__get__,
    Tensor.dtype.__get__,
    Tensor.device.__get__,
    Tensor.ndim.__get__,
    Tensor.dim,
    Tensor.size,
}
"""What can be told of an answer that is not there yet."""


class PendingTensor(PendingValue, Tensor):  # type: ignore[misc]
    """One tensor of an answer that is computed when somebody looks at it."""

    call: _WaitingCall
    leaf: int

    @staticmethod
    def waiting(call: _WaitingCall, leaf: int, like: _Leaf) -> PendingTensor:
        """A tensor of this shape whose values are not there yet."""
        found: PendingTensor = Tensor._make_wrapper_subclass(
            PendingTensor, (call.rows, *like.shape), dtype=like.dtype, device=like.device
        )
        found.call, found.leaf = call, leaf
        return found

    def value(self) -> Tensor:
        """The answer; computed now where it was not yet."""
        return self.call.answers()[self.leaf]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Any operation on the answer needs it; only its shape does not."""
        if func in _ASKS_ONLY:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return func(*settled(args), **settled(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What came past `__torch_function__`, from inside of torch, needs the answer too."""
        return func(*settled(args), **settled(kwargs or {}))


@dataclasses.dataclass(frozen=True, slots=True)
class _Leaf:
    """A tensor of an answer, without its first dimension."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    """What the module returns for inputs of one kind."""

    structure: Structure
    leaves: tuple[_Leaf, ...]


class _WaitingCall:
    """One call that waits, or waited."""

    __slots__ = ("batcher", "found", "inputs", "key", "rows")

    def __init__(self, batcher: CallBatcher, key: Any, inputs: list[Tensor]) -> None:
        self.batcher, self.key, self.inputs = batcher, key, inputs
        self.rows = inputs[0].shape[0]
        self.found: list[Tensor] | None = None

    def answers(self) -> list[Tensor]:
        """The tensors of the answer."""
        if self.found is None:
            self.batcher.compute()
        assert self.found is not None
        return self.found


class CallBatcher:
    """A layer that gathers the calls of a module: at once where shapes are new, else pending.

    Args:
        most: Calls that wait at most; then they are computed.
    """

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._lock = threading.RLock()
        self._known: dict[Any, _Answer | None] = {}
        self._waiting: list[_WaitingCall] = []
        self._inner: Inner | None = None

    def __call__(self, inner: Inner, *args: Any, **kwargs: Any) -> Any:
        """The module's answer, at once or pending."""
        try:
            inputs, structure = flatten((args, kwargs))
        except UnknownStructure:
            return inner(*args, **kwargs)
        if not inputs or any(not one.dim() or one.shape[0] != inputs[0].shape[0] for one in inputs):
            return inner(*args, **kwargs)
        key = (repr(structure), tuple((tuple(one.shape[1:]), one.dtype) for one in inputs))
        with self._lock:
            if key not in self._known:
                found = inner(*args, **kwargs)
                self._known[key] = _batchable(found, inputs[0].shape[0])
                return found
            answer = self._known[key]
            if answer is None:
                return inner(*args, **kwargs)
            if self._waiting and (
                self._waiting[0].key[0] != (key, structure)[0] or len(self._waiting) >= self._most
            ):
                self.compute()
            self._inner = inner
            call = _WaitingCall(self, (key, structure), inputs)
            self._waiting.append(call)
            leaves = [
                PendingTensor.waiting(call, index, leaf) for index, leaf in enumerate(answer.leaves)
            ]
            return unflatten(answer.structure, leaves)

    def compute(self) -> None:
        """Compute all calls that wait, as one."""
        with self._lock:
            calls, self._waiting = self._waiting, []
            if not calls:
                return
            assert self._inner is not None
            columns = zip(*(call.inputs for call in calls), strict=True)
            joined = [torch.cat(column) if len(calls) > 1 else column[0] for column in columns]
            args, kwargs = unflatten(calls[0].key[1], joined)
            tensors, _ = flatten(self._inner(*args, **kwargs))
            rows = [call.rows for call in calls]
            parts = [tensor.split(rows) for tensor in tensors]
            for index, call in enumerate(calls):
                call.found = [part[index] for part in parts]


def _batchable(found: Any, rows: int) -> _Answer | None:
    """What an answer looks like; None where its tensors do not all have one row per input row."""
    try:
        tensors, structure = flatten(found)
    except UnknownStructure:
        return None
    if not tensors or any(not one.dim() or one.shape[0] != rows for one in tensors):
        return None
    leaves = tuple(_Leaf(tuple(one.shape[1:]), one.dtype, one.device) for one in tensors)
    return _Answer(structure, leaves)
