"""A forward pass that stops at a matmul, and goes on from there once the layers before are rounded.

A layer is rounded looking at what those before it hand on as they were rounded, so a block is run
through as often as it has such layers. What was computed up to the last stop is the same again: of
each function that torch computed until then, the result is kept if the pass still holds it (its
residual, the input that it stopped at), and the next pass is handed these results in the same
order, without computing anything, up to where it stopped. Results that nothing holds any more only
flow into others that are not computed either.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ridgeline.compress.watching.capture import Stop
from ridgeline.compress.watching.matmuls import weights_met


@dataclass(slots=True, kw_only=True)
class HeldBetweenStops:
    """The memory that all passes through a block may hold together between two stops."""

    limit_bytes: int
    held_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What a pass goes on from."""

    results: tuple[tuple[Any, Any], ...] = ()
    """Each function that was called until then, and what it handed back."""
    held: tuple[tuple[Tensor, int], ...] = ()
    """The tensors among these, with the number of times that each was changed in place."""
    passed: frozenset[int] = frozenset()
    """The addresses of the weights that were multiplied with."""

    def num_bytes(self, given: Tensor) -> int:
        """Bytes that are there for this state alone."""
        storages = [tensor.untyped_storage() for tensor, _ in self.held]
        sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
        sizes.pop(given.untyped_storage().data_ptr(), None)
        return sum(sizes.values())


class ForwardPass:
    """One chunk's way through a block.

    Args:
        forward: Hands the chunk through.
        given: The chunk, of which what it hands through may be views.
        room: Shared by all chunks; where it is full, a pass goes on from an earlier stop.
    """

    def __init__(
        self, forward: Callable[[], Tensor], given: Tensor, room: HeldBetweenStops
    ) -> None:
        self._forward = forward
        self.given = given
        """The chunk; what is written into it flows on."""
        self._room = room
        self._state = _State()

    def __call__(self) -> Tensor:
        """From the beginning; nothing is kept of it."""
        self.forget()
        return self._forward()

    def forget(self) -> None:
        """Begin anew next time."""
        self._become(_State())

    def forget_beyond(self, weights: Collection[int]) -> None:
        """Begin anew next time where one of these weights was used before the last stop.

        Args:
            weights: Addresses of weights that have changed, or whose inputs are wanted.
        """
        if not self._state.passed.isdisjoint(weights):
            self.forget()

    def go_on(self) -> Tensor:
        """From the last stop."""
        if any(tensor._version != version for tensor, version in self._state.held):
            self.forget()
        try:
            return self._run()
        except _OffTrackError:
            self.forget()
            return self._run()

    def _run(self) -> Tensor:
        recorded = _Recorded(self._state)
        try:
            with recorded:
                result = self._forward()
        except Stop:
            if recorded.stopped is not None:
                self._become(recorded.stopped)
            raise
        self.forget()
        return result

    def _become(self, state: _State) -> None:
        """Keep a state, unless there is no room for it."""
        room = self._room
        more = state.num_bytes(self.given) - self._state.num_bytes(self.given)
        if more <= 0 or room.held_bytes + more <= room.limit_bytes:
            room.held_bytes += more
            self._state = state


class _OffTrackError(Exception):
    """A pass calls other functions than the one before did."""


class _Recorded(TorchFunctionMode):
    """Hands out the results of a state first, and then notes what is computed."""

    def __init__(self, state: _State) -> None:
        super().__init__()
        self.stopped: _State | None = None
        self._before = state.results
        self._calls: list[tuple[Any, Callable[[], Any]]] = []
        self._passed = set(state.passed)

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What torch calls in place of each of its functions."""
        del types
        number = len(self._calls)
        if number < len(self._before):
            expected, result = self._before[number]
            if func != expected:
                raise _OffTrackError
            result = _aliased(result)  # which lives as long as the pass holds it
        else:
            try:
                result = func(*args, **(kwargs or {}))
            except Stop:
                self.stopped = self._stop()
                raise
            self._passed.update(weights_met(func, args))
        self._calls.append((func, _weakly(result)))
        return result

    def _stop(self) -> _State:
        """What is held now, while every frame of the pass is still there."""
        results = tuple((func, result()) for func, result in self._calls)
        tensors = {id(one): one for _, result in results for one in _tensors(result)}
        tensors.pop(id(_GONE), None)
        return _State(
            results=results,
            held=tuple((one, one._version) for one in tensors.values()),
            passed=frozenset(self._passed),
        )


_GONE = torch.empty(0)
"""Stands for a result that nothing holds any more."""


def _weakly(result: Any) -> Callable[[], Any]:
    """Gives the result back, with what is gone by then replaced."""
    if isinstance(result, Tensor):
        reference = weakref.ref(result)

        def held() -> Tensor:
            found = reference()
            return _GONE if found is None else found

        return held
    if isinstance(result, list | tuple) and any(isinstance(part, Tensor) for part in result):
        parts, kind = [_weakly(part) for part in result], type(result)
        return lambda: kind([part() for part in parts])
    return lambda: result


def _aliased(result: Any) -> Any:
    """The same values in other objects."""
    if result is _GONE or not _tensors(result):
        return result
    if isinstance(result, Tensor):
        return result.detach()
    return type(result)([_aliased(part) for part in result])


def _tensors(result: Any) -> Sequence[Tensor]:
    if isinstance(result, Tensor):
        return (result,)
    if isinstance(result, list | tuple):
        return [part for part in result if isinstance(part, Tensor)]
    return ()
