"""Steps that belong together: a long one comes back after so many others.

An agent plays for a while and then learns from it in a hundred short steps; a model is evaluated
every fifty. The median of the steps tells what learning takes, and nothing of the rest. Whoever
asks what a run takes has to look at whole cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline import quantity

_LONG = 3.0
"""A step that takes more than so many times the median begins a cycle."""
_ALIKE = 0.25
"""And more than this share of the third longest: where cycles return, three are about as long, and
what the operating system takes in between is shorter."""
_WEIGHS = 0.1
"""Share of the time that long steps take beyond the others, from which they matter."""
_REGULAR = 1.25
"""Longest cycle over the shortest, at most: what other programs disturb comes as it likes."""
_LEAST_SEEN = 3
"""Long steps, at least: two of them lie so and so far apart by any chance."""


@dataclass(frozen=True, slots=True)
class StepCycle:
    """A long step that comes back."""

    steps: int
    """Steps from one long step to the next, of the longest cycle."""
    long_share: float
    """The share of the time that long steps take beyond a usual one."""

    @property
    def in_words(self) -> str:
        """How often the long step comes, and what it takes."""
        share = quantity.percent(self.long_share)
        return f"one step in {self.steps} takes far longer, {share} of the time"


def cycle_of(seconds: Sequence[float]) -> StepCycle | None:
    """The cycle in which long steps return; None where none does.

    Args:
        seconds: Times of steps that followed each other.

    >>> cycle_of([9, 1, 1, 1, 9, 1, 1, 1, 9, 1]).steps
    4
    >>> cycle_of([9, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    """
    times = np.asarray(seconds, dtype=np.float64)
    long = _long_steps(times)
    if len(long) < _LEAST_SEEN:
        return None
    gaps = np.diff(long)
    if gaps.max() > _REGULAR * gaps.min():
        return None
    beyond = float((times[long] - np.median(times)).sum())
    return StepCycle(int(gaps.max()), beyond / float(times.sum()))


def usual_steps(seconds: Sequence[float], among: Sequence[float]) -> list[float]:
    """Steps that are not long among those that are given beside them.

    >>> usual_steps([1.0, 9.0], among=[1.0, 1.0, 1.0, 9.0])
    [1.0]
    """
    longest = _LONG * float(np.median(np.asarray(among, dtype=np.float64)))
    return [one for one in seconds if one <= longest]


def has_long_steps(seconds: Sequence[float]) -> bool:
    """Do a few steps take so much longer than the others that they matter?

    >>> has_long_steps([1, 1, 1, 1, 9, 1]), has_long_steps([1, 2, 1, 1, 2, 1])
    (True, False)
    """
    return len(_long_steps(np.asarray(seconds, dtype=np.float64))) > 0


def _long_steps(times: NDArray[np.float64]) -> NDArray[np.intp]:
    """Where the long steps are; none where together they weigh too little."""
    if len(times) == 0:
        return np.empty(0, dtype=np.intp)
    middle = float(np.median(times))
    third = float(np.sort(times)[-min(_LEAST_SEEN, len(times))])
    long = np.flatnonzero(times > max(_LONG * middle, _ALIKE * third))
    weight = float((times[long] - middle).sum()) / float(times.sum())
    return long if weight >= _WEIGHS else long[:0]
