"""Steps of a model in stages that are under way, so that no stage waits for another.

One step after the other keeps one stage busy. Instead, as many steps as there are stages are begun
before the first one is finished, each with its part of the running requests; a request is in one of
them at a time. Stages compute them in order, so what one step writes into a block is there for the
next, and a block that is freed meanwhile is written over later.

A step of a few requests takes about as long as one of twice as many, which reads the same weights;
dealing them out then gives each stage more work and no sooner. So there are several steps only
where each has its `LEAST_SEQUENCES`.

What a step has to be alone for goes on alone: drafts, which need the tokens of the step before for
every sequence, and beams, which are compared with each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.batching.sequence import Sequence, Step
from ridgeline.serve.engine.step_rows import StepRows

LEAST_SEQUENCES = 16
"""Requests of a step, where there are others under way (`bench/serve_stages.py`)."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One step under way."""

    step: Step
    rows: StepRows
    """Whose the rows of its logits will be."""
    number: int
    """By which the runner knows it."""
    began: float

    @property
    def living(self) -> Step:
        """The step without those that have ended since."""
        alive = tuple(one for one in self.step.slices if one.sequence.finish_reason is None)
        return self.step if len(alive) == len(self.step.slices) else Step(alive)


class Flights:
    """The steps under way, the first to be finished first."""

    def __init__(self) -> None:
        self._all: deque[Flight] = deque()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._all)

    def __iter__(self) -> Iterator[Flight]:
        """All of them in their order."""
        return iter(self._all)

    @property
    def sequences(self) -> set[Sequence]:
        """The sequences that are in one of them."""
        return {one.sequence for flight in self._all for one in flight.step.slices}

    def begin(self, flight: Flight) -> None:
        """Note that a step is under way."""
        self._all.append(flight)

    def land(self) -> Flight:
        """The one that has been under way for longest, which is so no longer."""
        return self._all.popleft()
