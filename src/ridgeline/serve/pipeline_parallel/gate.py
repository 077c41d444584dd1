"""Where states leave the first stage and where they come back, so that several steps are under way.

A step of the first stage has two halves: embedding and its own layers, then, once the states have
been round, norm and head. `begin` computes the first one and returns as soon as the states are on
their way; `finish` the second. Between them the stage may begin other steps, which is what keeps
all stages at work (the in-flight batches of pipeline-parallel serving).

Both are a call of the whole model, so that whatever a family does around its layers is done by the
family's own code: the first call is left by an exception when the last layer has sent its states
on, and in the second one layers pass on what they are given, the last one what came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from torch import Tensor, nn

from ridgeline.serve.tensor_parallel.group import RankGroup

T = TypeVar("T")


class _Left(Exception):
    """The states are on their way to the next stage."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states


class StageGate:
    """The first stage's layers, as a step leaves them and comes back to them."""

    def __init__(self, layers: nn.ModuleList, group: RankGroup) -> None:
        """Put the gate behind the last layer."""
        self._group = group
        self._half: Literal["both", "first", "second"] = "both"
        self._came: Tensor | None = None
        self._beside: tuple[Any, ...] | None = None
        """What layers answer with beside their states; None: they answer with states alone."""
        for layer in layers:
            layer.forward = self._passing(layer.forward)
        layers[-1].register_forward_hook(self._turn)

    def begin(self, forward: Callable[[], object]) -> Tensor:
        """Compute the first half of a step; states like those that will come back."""
        self._half = "first"
        try:
            forward()
        except _Left as left:
            return left.states
        finally:
            self._half = "both"
        raise AssertionError("the states never left")

    def land(self, like: Tensor) -> Tensor:
        """The states of the step that has been under way for longest."""
        return self._group.take(like)

    def finish(self, came: Tensor, forward: Callable[[], T]) -> T:
        """Compute the second half of a step, whose states have come."""
        self._half, self._came = "second", came
        try:
            return forward()
        finally:
            self._half, self._came = "both", None

    def _passing(self, computed: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._half != "second":
                return computed(*args, **kwargs)
            states = args[0] if args else kwargs["hidden_states"]
            return states if self._beside is None else (states, *self._beside)

        return forward

    def _turn(self, _layer: nn.Module, _args: Any, out: Any) -> Any:
        states = out[0] if isinstance(out, tuple) else out
        self._beside = out[1:] if isinstance(out, tuple) else None
        if self._half == "second":
            came = self._came
        else:
            self._group.send_on(states)
            if self._half == "first":
                raise _Left(states)
            came = self._group.take(states)
        return came if self._beside is None else (came, *self._beside)
