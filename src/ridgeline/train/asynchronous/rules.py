"""What a parameter server does with a gradient that comes: apply it, drop it, or let one wait.

    synchronous   all workers' gradients of one version are averaged into one update
    drop          each gradient is an update of its own, unless more than `max_staleness` updates
                  came between its pull and its push: then it is dropped (bounded staleness)
    wait          each is an update, and a worker more than `max_staleness` steps ahead of the
                  slowest waits (stale synchronous parallel: Ho et al., NIPS 2013)

A gradient that is τ updates stale moves the weights by η / (1 + τ)^p: p = 1 is the staleness-aware
rate of Zhang et al. (arXiv 1511.05950), 0 the plain one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from torch import Tensor

from ridgeline.errors import InputError

Rule = Literal["synchronous", "drop", "wait"]
RULES = ("synchronous", "drop", "wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class AsynchronousSettings:
    """How workers and server agree."""

    workers: int
    rule: Rule = "drop"
    max_staleness: int = 16
    """With `drop` the updates that a gradient may be late, with `wait` the steps that a worker may
    be ahead."""
    learning_rate: float = 0.1
    staleness_power: float = 1.0
    """The rate falls with 1/(1 + staleness) to this power; 0: it does not."""

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InputError(f"rule {self.rule}: use one of {', '.join(RULES)}")
        for name, least in (("workers", 1), ("max_staleness", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} is {value!r}; it is a whole number, {least} or more")
        if not (0.0 < self.learning_rate < inf and 0.0 <= self.staleness_power < inf):
            raise InputError("learning_rate is above 0, staleness_power 0 or more")


class ParameterServer:
    """The weights, and what becomes of the gradients that workers send."""

    def __init__(self, weights: Sequence[Tensor], settings: AsynchronousSettings) -> None:
        self.weights = [weight.detach().clone() for weight in weights]
        self.version = 0
        """Updates that were made."""
        self.dropped = 0
        self.staleness: Counter[int] = Counter()
        """Updates late → gradients that were applied."""
        self._settings = settings
        self._steps = [0] * settings.workers
        self._gathered: dict[int, Sequence[Tensor]] = {}
        self._waiting: set[int] = set()

    def receive(self, worker: int, seen: int, gradients: Sequence[Tensor]) -> list[int]:
        """Take a worker's gradient of version `seen`; the workers that may go on, in order."""
        self._steps[worker] += 1
        if self._settings.rule == "synchronous":
            return self._gather(worker, gradients)
        late = self.version - seen
        if self._settings.rule == "drop" and late > self._settings.max_staleness:
            self.dropped += 1
            return [worker]
        self._apply(gradients, late)
        if self._settings.rule == "drop":
            return [worker]
        return self._let_go(worker)

    def leave(self, worker: int) -> list[int]:
        """Go on without a worker; those that waited for it, in order."""
        self._steps[worker] = 2**62
        self._waiting.discard(worker)
        return self._released()

    def _gather(self, worker: int, gradients: Sequence[Tensor]) -> list[int]:
        self._gathered[worker] = gradients
        if len(self._gathered) < self._settings.workers:
            return []
        several = [self._gathered[one] for one in sorted(self._gathered)]
        mean = [torch.stack(parts).mean(dim=0) for parts in zip(*several, strict=True)]
        self.staleness[0] += len(several) - 1
        self._apply(mean, 0)
        self._gathered = {}
        return list(range(self._settings.workers))

    def _apply(self, gradients: Sequence[Tensor], late: int) -> None:
        settings = self._settings
        rate = settings.learning_rate / (1.0 + late) ** settings.staleness_power
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.sub_(gradient, alpha=rate)
        self.version += 1
        self.staleness[late] += 1

    def _let_go(self, worker: int) -> list[int]:
        self._waiting.add(worker)
        return self._released()

    def _released(self) -> list[int]:
        """Workers who wait and are no further ahead than allowed."""
        slowest = min(self._steps)
        free = [
            one
            for one in sorted(self._waiting)
            if self._steps[one] - slowest <= self._settings.max_staleness
        ]
        self._waiting.difference_update(free)
        return free
