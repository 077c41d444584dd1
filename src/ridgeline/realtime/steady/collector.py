"""Garbage collections between frames only: frozen at the start, then made on purpose in slack.

A collection stops every thread of the process and takes the longer the more objects live. What
lives before the first frame, and after the warm-up, is hidden from the collector
(`gc.freeze`); automatic collections wait for a backstop; and when nothing is due for three times
as long as such collections recently took (their 99th percentile), one is made. So garbage never
grows without bound: with no slack at all, the backstop collects in mid-frame, and is counted.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ridgeline import quantity
from ridgeline.records.realtime_run import Collection, SteadyMeasure

NAME = "gc"
SLACK: Final = "slack"
"""What `Collection.thread` says of one that was made on purpose."""
SLACK_FACTOR = 3.0
"""Slack that is free for so many times the time that collections recently took is enough."""
BACKSTOP_OBJECTS = 100_000
"""New objects, beyond those freed, at which Python collects whether there is slack or not."""
DUE = (700, 10, 10)
"""Python's own thresholds (gc.set_threshold): new objects before the youngest generation is due,
collections of a generation before the next is."""
RECENT_SECONDS = 30.0
RECENT_COLLECTIONS = 100
UNSEEN_SECONDS_PER_OBJECT = 1e-6
"""Time per new object, assumed until collections of a thousand objects were seen: some five times
what freeing a small cycle takes."""


class SlackCollector:
    """The garbage collector of this process, under our control between `begin` and `undo`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.collections: list[Collection] = []
        """Every collection since `begin`, in `clock`'s seconds."""
        self._clock = clock
        self._workers: dict[int, str] = {}
        self._took: list[deque[tuple[float, float]]] = [
            deque(maxlen=RECENT_COLLECTIONS) for _ in DUE
        ]
        """Per generation, when collections ended and how long they took."""
        self._per_object: deque[tuple[float, float]] = deque(maxlen=RECENT_COLLECTIONS)
        self._on_purpose = False
        self._open: tuple[float, int] | None = None
        self._thresholds: tuple[int, int, int] | None = None
        self._kept_frozen = 0
        self._frozen = 0
        self._before_frames = 0
        self._refusals = 0

    def begin(self) -> None:
        """Freeze what lives, and leave automatic collections to the backstop."""
        self._thresholds = gc.get_threshold()
        self._kept_frozen = gc.get_freeze_count()
        gc.callbacks.append(self._seen)
        gc.set_threshold(BACKSTOP_OBJECTS, *self._thresholds[1:])
        self.expected_seconds(0)  # what numpy loads with its first quantile is frozen, too
        self.freeze()
        for samples in (*self._took, self._per_object):  # of all that is frozen from now on
            samples.clear()

    def freeze(self) -> None:
        """Collect each generation, which also says how long that takes, and freeze what is left."""
        for generation in range(len(DUE)):
            self._collect(generation)
        gc.freeze()
        self._before_frames = len(self.collections)
        self._frozen = gc.get_freeze_count()

    def enter(self, worker: str) -> None:
        """Name the calling thread, for collections that it has to pay for."""
        self._workers[threading.get_ident()] = worker

    def idle(self, slack_seconds: float) -> None:
        """Collect the oldest generation that is due and fits into the slack, if any."""
        counts = gc.get_count()
        due = [generation for generation, least in enumerate(DUE) if counts[generation] >= least]
        for generation in reversed(due):
            if slack_seconds >= SLACK_FACTOR * self.expected_seconds(generation):
                self._collect(generation)
                return
        self._refusals += bool(due)

    def expected_seconds(self, generation: int) -> float:
        """How long a collection has to be expected to take now.

        The 99th percentile of recent ones, and no less than what the objects that have come since
        the last one would take by the median time per object. Where none is recent, the median of
        older ones: one that was interrupted must not forbid the next for ever.
        """
        now, objects = self._clock(), gc.get_count()[0]
        took = self._took[generation]
        recent = [seconds for ended, seconds in took if now - ended <= RECENT_SECONDS]
        share = 0.99 if recent else 0.5
        usual = float(np.quantile(recent or [seconds for _, seconds in took] or [0.0], share))
        rates = [rate for ended, rate in self._per_object if now - ended <= RECENT_SECONDS]
        rate = float(np.median(rates)) if rates else UNSEEN_SECONDS_PER_OBJECT
        return max(usual, rate * objects)

    def _collect(self, generation: int) -> None:
        self._on_purpose = True
        try:
            gc.collect(generation)
        finally:
            self._on_purpose = False

    def _seen(self, phase: str, info: dict[str, Any]) -> None:
        """Python calls it at the start and at the end of every collection."""
        now = self._clock()
        if phase == "start":
            self._open = now, gc.get_count()[0]
            return
        if self._open is None:
            return
        started, objects = self._open
        self._open = None
        generation = int(info["generation"])
        seconds = now - started
        self._took[generation].append((now, seconds))
        if generation == 0 and objects >= 1000:
            self._per_object.append((now, seconds / objects))
        payer = self._workers.get(threading.get_ident(), "another thread")
        payer = SLACK if self._on_purpose else payer
        self.collections.append(
            Collection(started=started, ended=now, generation=generation, thread=payer)
        )

    def leave_to_child(self) -> None:
        """In a forked process, step back for a collector of its own; what is frozen stays so."""
        if self._thresholds is not None:
            gc.callbacks.remove(self._seen)
            gc.set_threshold(*self._thresholds)
            self._thresholds = None

    def undo(self) -> None:
        """Give the collector back as it was; what someone else had frozen before stays so."""
        if self._thresholds is None:
            return
        gc.callbacks.remove(self._seen)
        gc.set_threshold(*self._thresholds)
        self._thresholds = None
        if not self._kept_frozen:
            gc.unfreeze()

    @property
    def measure(self) -> SteadyMeasure:
        """What is frozen, and which collections came when."""
        later = self.collections[self._before_frames :]
        made = [one.ended - one.started for one in later if one.thread == SLACK]
        forced = len(later) - len(made)
        said = f"{self._frozen:,} objects frozen; {len(made)} collections between frames"
        if made:
            said += f", the longest {quantity.seconds(max(made))}"
        if self._refusals:
            said += f"; {self._refusals} times one was due and the slack too short"
        if forced:
            said += (
                f"; {forced} in mid-frame, at {BACKSTOP_OBJECTS:,} new objects without slack: "
                "frames of this rate leave no room for the cycles that stages make"
            )
        return SteadyMeasure(name=NAME, granted=not forced, detail=said)
