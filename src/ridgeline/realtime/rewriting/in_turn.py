"""A module that computes some rows of its batch on each frame, and the others on the next.

A batch of six cameras at k = 2: three are computed on even frames, three on odd ones, the others'
answer is that of the frame before. The load is even, which recomputing all on every second frame
would not be; the price is that a share of the answer is up to k - 1 frames older than its stamp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline.realtime.rewriting.layers import Inner
from ridgeline.runtimes.capture.structure import Structure, UnknownStructure, flatten, unflatten

if TYPE_CHECKING:
    from torch import Tensor


class TurnLayer:
    """A layer that computes every k-th row of a batch, in turn.

    Args:
        every: Frames after which a row is computed again.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._turn = 0
        self._answer: list[Tensor] = []
        self._structure: Structure = {}
        self._rows = -1

    def __call__(self, inner: Inner, *args: Any, **kwargs: Any) -> Any:
        """The module's answer; rows that are not due come from the last frames."""
        inputs, structure = flatten((args, kwargs))
        rows = inputs[0].shape[0] if inputs and inputs[0].dim() else 0
        even = all(one.dim() and one.shape[0] == rows for one in inputs)
        if rows < self._every or not even:
            return inner(*args, **kwargs)
        if rows != self._rows:
            return self._whole(inner, args, kwargs, rows)
        self._turn = (self._turn + 1) % self._every
        due = slice(self._turn, None, self._every)
        some_args, some_kwargs = unflatten(structure, [one[due] for one in inputs])
        found, _ = flatten(inner(*some_args, **some_kwargs))
        fresh = [whole.clone() for whole in self._answer]
        for whole, part in zip(fresh, found, strict=True):
            whole[due] = part
        self._answer = fresh
        return unflatten(self._structure, fresh)

    def _whole(self, inner: Inner, args: Any, kwargs: Any, rows: int) -> Any:
        answer = inner(*args, **kwargs)
        try:
            tensors, structure = flatten(answer)
        except UnknownStructure:
            return answer
        if all(one.dim() and one.shape[0] == rows for one in tensors):
            self._answer, self._structure, self._rows = tensors, structure, rows
        return answer
