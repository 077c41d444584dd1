"""What the sensors of a pipeline sent, kept; and the pipeline run on it without a clock.

A change of a pipeline is compared on the same inputs. In a replay each frame goes the whole way
before the next comes, at the times that its sensor's rate says, so that joins, states and results
do not depend on how fast anything is.
"""

from __future__ import annotations

import pickle
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, in_words
from ridgeline.frames.flow import FrameFlow
from ridgeline.realtime.pipeline import Pipeline, SensorReading
from ridgeline.realtime.rewriting.graph import without_deadline
from ridgeline.realtime.rewriting.settle import settled
from ridgeline.records.store import write_atomically

FREE_RUNNING_HZ = 30.0
"""The rate at which a sensor without one is replayed."""


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """One frame of a sensor."""

    data: Any
    frame: int
    """Its number as the sensor gave it."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The first frames of every sensor."""

    frames: dict[str, list[RecordedFrame | None]]
    """Sensor → its frames; None where nothing came."""

    def write(self, path: Path) -> None:
        """Keep it in a file."""
        write_atomically(path, pickle.dumps(self.frames, protocol=5))

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Read again what `write` left."""
        return cls(pickle.loads(path.read_bytes()))  # noqa: S301 - our own

    def readers(self) -> dict[str, Callable[[int], Any]]:
        """Sensors that send it again and again, as fast as they are asked."""

        def reader(frames: list[RecordedFrame | None]) -> Callable[[int], Any]:
            def read(number: int) -> Any:
                found = frames[number % len(frames)]
                return None if found is None else found.data

            return read

        return {name: reader(frames) for name, frames in self.frames.items()}


def record(pipeline: Pipeline, frames: int) -> Recording:
    """Read so many frames of the first sensor, and of the others for as long.

    Raises:
        InputError: A sensor has no frames, or its code raised.
    """
    sensors = pipeline.shape.sensors
    seconds = frames / (sensors[0].rate_hz or FREE_RUNNING_HZ)
    found: dict[str, list[RecordedFrame | None]] = {}
    for sensor in sensors:
        rows: list[RecordedFrame | None] = []
        for number in range(max(1, round(seconds * (sensor.rate_hz or FREE_RUNNING_HZ)))):
            try:
                read = pipeline.readers[sensor.name](number)
            except StopIteration:
                break
            except Exception as error:
                raise InputError(
                    f"sensor {sensor.name}, frame {number}: {in_words(error)}"
                ) from error
            given = read if isinstance(read, SensorReading) else SensorReading(data=read)
            identity = number if given.frame is None else given.frame
            rows.append(None if read is None else RecordedFrame(given.data, identity))
        if not any(rows):
            raise InputError(f"sensor {sensor.name} sent no frame; there is nothing to compare on")
        found[sensor.name] = rows
    return Recording(found)


@dataclass(slots=True)
class Replay:
    """What a replay gave."""

    results: dict[str, list[tuple[int, Any]]] = field(default_factory=lambda: defaultdict(list))
    """Sink → (frame as the sensor numbered it, result), in order."""
    stage_seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    frame_seconds: list[float] = field(default_factory=list)
    """Time that each frame of the first sensor kept the stages busy, the others' beside it."""


def replay(
    pipeline: Pipeline,
    recording: Recording,
    frames: range,
    *,
    on_frame: Callable[[int], None] | None = None,
) -> Replay:
    """Run recorded frames through a pipeline, in this thread.

    Args:
        pipeline: Its stages keep the state that they are left with.
        recording: Of its sensors.
        frames: Which frames of the first sensor; others for the same time.
        on_frame: Told the number of each frame of the first sensor before it runs.

    Raises:
        InputError: A stage raised: which, on which frame, and what.
    """
    free = without_deadline(pipeline)
    flow, found = FrameFlow(free.shape), Replay()
    first = free.shape.sensors[0].name
    for due, sensor, number in _arrivals(free, recording, frames):
        row = recording.frames[sensor][number]
        if row is None:
            continue
        if sensor == first:
            found.frame_seconds.append(0.0)
            if on_frame is not None:
                on_frame(number)
        flow.arrive(sensor, number, due, due, row.data)
        _drain(flow, free, recording, found, due)
    return found


def _arrivals(
    pipeline: Pipeline, recording: Recording, frames: range
) -> list[tuple[float, str, int]]:
    """When which frame of which sensor comes; at equal times slower sensors first."""
    shape = pipeline.shape
    rates = {one.name: one.rate_hz or FREE_RUNNING_HZ for one in shape.sensors}
    first = rates[shape.sensors[0].name]
    begin, end = frames.start / first, frames.stop / first
    rows = [
        (number / rates[name], rates[name], name, number)
        for name, kept in recording.frames.items()
        for number in range(len(kept))
        if begin - 1e-9 <= number / rates[name] < end - 1e-9
    ]
    return [(due, name, number) for due, _, name, number in sorted(rows)]


def _drain(
    flow: FrameFlow, pipeline: Pipeline, recording: Recording, found: Replay, now: float
) -> None:
    """Run every stage that has something to do, until none has."""
    names = list(reversed(flow.graph.order))
    sinks = set(pipeline.shape.sinks)
    while True:
        job = next((job for name in names if (job := flow.take(name, now)) is not None), None)
        if job is None:
            return
        begun = time.perf_counter()
        try:
            output = settled(pipeline.code[job.stage].call(*job.inputs))
        except Exception as error:
            raise InputError(
                f"stage {job.stage} raised on frame {job.frame}: "
                f"{type(error).__name__}: {in_words(error)}"
            ) from error
        spent = time.perf_counter() - begun
        found.stage_seconds[job.stage].append(spent)
        if found.frame_seconds:
            found.frame_seconds[-1] += spent
        if job.stage in sinks:
            found.results[job.stage].append(
                (_identity(flow, recording, job.stage, job.frame), output)
            )
        flow.finish(job, now, output)


def _identity(flow: FrameFlow, recording: Recording, stage: str, frame: int) -> int:
    """The number that the leading sensor itself gave a frame."""
    row = recording.frames[flow.graph.leads[stage]][frame]
    assert row is not None
    return row.frame
