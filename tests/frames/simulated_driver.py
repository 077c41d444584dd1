"""A driver of `FrameFlow` on a simulated clock, which watches what the flow does at every step."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ridgeline.frames.flow import FrameFlow
from ridgeline.frames.jobs import FrameJob
from ridgeline.records.pipeline_shape import PipelineShape
from ridgeline.records.realtime_run import FrameFates

Seconds = Callable[[str, random.Random], float]


class Value:
    """A payload that knows which frames went into it."""

    def __init__(self, frames: frozenset[tuple[str, int]]) -> None:
        self.frames = frames


@dataclass
class SimulatedDriver:
    """Sensors at their rates, stages that take as long as they are told.

    Stages run when they are woken, never because they are asked in turn: a stage that the flow
    forgets to wake stands still, and is found out.
    """

    shape: PipelineShape
    seed: int = 0
    seconds: Seconds = lambda _stage, _random: 0.01
    fails: float = 0.0
    """Share of calls that raise."""
    sensor_delay_seconds: float = 0.0
    """Frames come up to so long after their stamp, still in order."""
    released: Counter[int] = field(default_factory=Counter)
    made: list[Value] = field(default_factory=list)
    most_waiting: Counter[str] = field(default_factory=Counter)
    results: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Sink → leading frame and time of its results."""
    came_out: dict[str, dict[tuple[str, int], float]] = field(default_factory=dict)
    """Sink → frame of a sensor → when the first result made of it came out."""
    running: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.flow = FrameFlow(self.shape, release=lambda value: self.released.update([id(value)]))
        self.random = random.Random(self.seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], list[str]]]] = []
        self.order = itertools.count()
        self.left: dict[str, int] = {}

    def run(self, frames: int) -> list[FrameFates]:
        """Let each sensor send so many frames and stop, then everything run dry."""
        for sensor in self.shape.sensors:
            self.left[sensor.name] = frames
            if sensor.rate_hz is not None:
                self._pace(sensor.name, sensor.rate_hz, frames)
        self._tight_sensors()
        while self.events:
            self.now, _, event = heapq.heappop(self.events)
            self._wake(event())
            self._tight_sensors()
        return self.flow.fates()

    def _pace(self, sensor: str, rate_hz: float, frames: int) -> None:
        last = 0.0
        for frame in range(frames):
            stamp = frame / rate_hz
            last = max(last, stamp + self.random.uniform(0, self.sensor_delay_seconds))
            self._later(last, lambda s=stamp: self._arrive(sensor, s))

    def _tight_sensors(self) -> None:
        moved = True
        while moved:
            moved = False
            for sensor in self.shape.sensors:
                while (
                    sensor.rate_hz is None
                    and self.left[sensor.name]
                    and self.flow.room(sensor.name)
                ):
                    moved = True
                    self._wake(self._arrive(sensor.name, self.now))

    def _arrive(self, sensor: str, stamp: float) -> list[str]:
        value = self._value(frozenset({(sensor, self.sent[sensor])}))
        woken = self.flow.arrive(sensor, self.sent[sensor], stamp, self.now, value)
        self.sent[sensor] += 1
        self.left[sensor] -= 1
        return woken if self.left[sensor] else [*woken, *self.flow.stop(sensor, self.now)]

    def _value(self, frames: frozenset[tuple[str, int]]) -> Value:
        self.made.append(Value(frames))
        return self.made[-1]

    def _wake(self, stages: list[str]) -> None:
        while stages:
            for stage in stages:
                job = self.flow.take(stage, self.now)
                if job is not None:
                    assert not self.running[stage], "one frame at a time"
                    self.running[stage] += 1
                    at = self.now + self.seconds(stage, self.random)
                    self._later(at, lambda j=job: self._end(j))
            stages = self.flow.woken()
            self._watch()
        for stage in self.shape.stages:
            assert self.flow.take(stage.name, self.now) is None, f"nobody woke {stage.name}"

    def _end(self, job: FrameJob) -> list[str]:
        self.running[job.stage] -= 1
        if self.random.random() < self.fails:
            return self.flow.fail(job, self.now, "raised ValueError: on purpose")
        frames = frozenset(one for value in job.inputs for one in value.frames)
        if job.stage in self.shape.sinks:
            self.results.setdefault(job.stage, []).append((job.frame, self.now))
            for one in frames:
                self.came_out.setdefault(job.stage, {}).setdefault(one, self.now)
        return self.flow.finish(job, self.now, self._value(frames))

    def _later(self, at: float, event: Callable[[], list[str]]) -> None:
        heapq.heappush(self.events, (at, next(self.order), event))

    def _watch(self) -> None:
        for edge, waiting in self.flow.waiting.items():
            self.most_waiting[edge] = max(self.most_waiting[edge], waiting)
