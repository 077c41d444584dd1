"""Which of the modules that a script calls is its model: a call of it is a step of inference."""

from __future__ import annotations

import weakref
from collections import Counter
from time import monotonic

import torch
from torch import nn

from ridgeline.measure.child.anatomy import parameters, weights
from ridgeline.measure.child.guard import guarded

_TELLING_WEIGHTS = 4
_CALLS_OF_AN_EQUAL, _FEW_CALLS_OF_AN_EQUAL = 8, 2
"""A module of as many weights that is called so often without the main model takes its place; and
where a script has few calls."""
_CALLS_OF_ANOTHER, _SECONDS_OF_ANOTHER = 64, 10.0
"""The same for one of fewer weights, and for how long the main model was not called."""


class MainModel:
    """The largest outermost module so far; of several that are equal, the first.

    A flow calls its equal layers one after the other: that is one call of a model, not many. But
    a script may call a model once (to calibrate, to export, to compare) and then only what it made
    of it: a module that is called again and again while the largest is not takes its place.
    """

    def __init__(self) -> None:
        self.chosen: int | None = None
        """Which of the modules that are called it is, where a run before has shown it."""
        self._num_weights = 0
        self._module: weakref.ref[nn.Module] | None = None
        self._shapes: Counter[torch.Size] = Counter()
        """The shapes of its weights when it was counted; a functional call takes them away."""
        self._called = 0.0
        """When it was last called, on `monotonic`'s clock."""
        self._others: Counter[int] = Counter()
        """Calls of other modules since, by identity."""

    def is_it(self, module: nn.Module | None) -> bool:
        """Is this module the main model?"""
        return module is not None and self._module is not None and self._module() is module

    def counted(self, module: nn.Module, num_weights: int, place: int) -> None:
        """A module's weights were counted: it may be the largest, or in the place of the chosen."""
        if self.chosen is not None:
            if place == self.chosen:
                self._take(module, num_weights)
            return
        is_gone = self._module is None or self._module() is None
        if num_weights > self._num_weights or (num_weights == self._num_weights and is_gone):
            self._take(module, num_weights)

    def called(self, module: nn.Module, num_weights: int, *, few: bool = False) -> None:
        """An outermost module was called in a script that trains nothing and has yet to step."""
        if self.chosen is not None:
            return
        if self.is_it(module):
            self._called = monotonic()
            self._others.clear()
            return
        self._others[id(module)] += 1
        calls = self._others[id(module)]
        is_equal = num_weights == self._num_weights
        is_long = calls >= _CALLS_OF_ANOTHER and monotonic() - self._called > _SECONDS_OF_ANOTHER
        enough = _FEW_CALLS_OF_AN_EQUAL if few else _CALLS_OF_AN_EQUAL
        if is_long or (is_equal and calls >= enough):
            self._take(module, num_weights)

    def _take(self, module: nn.Module, num_weights: int) -> None:
        self._num_weights = num_weights
        self._module = weakref.ref(module)
        self._shapes = Counter(weight.shape for weight in weights(module))
        self._others.clear()

    @guarded(otherwise=False)
    def has_weights(self, tensors: list[torch.Tensor]) -> bool:
        """Are these tensors most of its weights, by their shapes?

        By shapes, for a functional call is given other tensors in the weights' place.
        """
        common = self._shapes & Counter(tensor.shape for tensor in tensors)
        return 2 * sum(shape.numel() * times for shape, times in common.items()) > self._num_weights

    @guarded()
    def weights_in_a_number(self) -> float | None:
        """The sum of its smallest weights, which no step leaves as it is."""
        module = self._module() if self._module is not None else None
        if module is None:
            return None
        trained = [weight.detach() for weight in parameters(module) if weight.requires_grad]
        smallest = sorted(trained, key=torch.Tensor.numel)[:_TELLING_WEIGHTS]
        return sum(float(weight.double().sum()) for weight in smallest)
