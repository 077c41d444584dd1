"""A run under way: the flow, the sensors, the clock, and whom it tells.

Sensors are put off while frames of the warm-up keep stages busy. The first call of a stage may
compile for seconds. Sensors that went on at their rates meanwhile would leave a heap of frames
behind it, and the first that count would be late for what the warm-up is there to hide. So the next
frame waits until nothing runs, and all sensors' times move by as much: the first frame that counts
meets an idle pipeline, on its grid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.frames.call_log import MeasuredTimes
from ridgeline.frames.flow import FrameFlow
from ridgeline.frames.jobs import FrameJob
from ridgeline.realtime.executors.calls import CallOutcome
from ridgeline.realtime.executors.sensors import RunClock, SensorGroup, SensorReader, SentFrame
from ridgeline.realtime.executors.stop import EndRequest
from ridgeline.realtime.pipeline import Pipeline
from ridgeline.realtime.steady import Steadiness

PROGRESS_SECONDS = 0.2
"""Time between two calls of `progress`, at least."""
AMPLE_SECONDS = 0.005
"""Slack in which whoever shows progress does no harm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """What a run was asked for, as `execute` takes it."""

    frames: int
    warmup: int
    tight: bool
    steady: Steadiness | None
    progress: Callable[[int], None] | None
    on_result: Callable[[str, int, object], None] | None


class ExecutionState:
    """What all executors share. Not safe between threads: `dispatch.py` holds a lock around it.

    Args:
        release: As `FrameFlow` takes it.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        order: RunOrder,
        stop: EndRequest,
        release: Callable[[Any], None] | None = None,
    ) -> None:
        shape = pipeline.shape
        self.pipeline = pipeline
        self.order = order
        self.stop = stop
        self.flow = FrameFlow(shape, release=release)
        self.clock = RunClock()
        self.notes: list[str] = []
        self.sinks = frozenset(shape.sinks)
        total = order.warmup + order.frames
        self.readers = [
            SensorReader(sensor, pipeline.readers[sensor.name], self.clock,
                         None if number else total)
            for number, sensor in enumerate(shape.sensors)
        ]  # fmt: skip
        self.hold = WarmUpHold(self.clock, self.readers, order.warmup)
        self._stopped: set[str] = set()
        self._raised: set[str] = set()
        self._warm = order.steady is None
        self._progress_at = 0.0

    @property
    def first(self) -> SensorReader:
        """The sensor whose frames are counted."""
        return self.readers[0]

    def group(self, readers: list[SensorReader]) -> SensorGroup:
        """Sensors that one thread reads."""
        return SensorGroup(readers, self.first, tight=self.order.tight)

    def arrive(self, reader: SensorReader, sent: SentFrame | None) -> list[str]:
        """Tell the flow what a sensor sent, or that it failed; the stages that this wakes."""
        now = self.clock.now()
        if reader.fault is not None:
            kind, detail = reader.fault
            reader.fault = None
            self.flow.note(reader.name, kind, now, detail)
        woken: list[str] = []
        if sent is not None:
            woken = self.flow.arrive(reader.name, sent.frame, sent.stamp, now, sent.data)
        return woken + (self.stop_sensors([reader]) if reader.ended else [])

    def stop_sensors(self, readers: list[SensorReader]) -> list[str]:
        """Tell the flow that these send no more; the stages that this wakes."""
        woken: list[str] = []
        for reader in readers:
            reader.ended = True
            if reader.name not in self._stopped:
                self._stopped.add(reader.name)
                woken += self.flow.stop(reader.name, self.clock.now())
        return woken

    @property
    def slack_seconds(self) -> float:
        """Time until the next frame is due; 0 where one is due now, or no sensor has a rate."""
        dues = [reader.due for reader in self.readers if not reader.ended]
        return max(0.0, min(dues) - self.clock.now()) if dues and not self.order.tight else 0.0

    def ended(self, job: FrameJob, outcome: CallOutcome, payload: Any) -> list[str]:
        """Tell the flow how a call ended; the stages that this wakes.

        `payload` travels on in place of the outcome's output.
        """
        origin = self.clock.origin
        times = MeasuredTimes(
            started=outcome.started - origin,
            ended=outcome.ended - origin,
            cpu_seconds=outcome.cpu_seconds,
            gpu_seconds=outcome.gpu_seconds,
            enqueue_seconds=outcome.enqueue_seconds,
        )
        now = self.clock.now()
        if not outcome.failure:
            return self.flow.finish(job, now, payload, times)
        if job.stage not in self._raised and not outcome.died:
            self._raised.add(job.stage)
            place = f" ({outcome.place})" if outcome.place else ""
            self.notes.append(f"{job.stage} {outcome.failure}{place}, first on frame {job.frame}")
        return self.flow.fail(job, now, outcome.failure, times)

    def show_result(self, job: FrameJob, result: object) -> None:
        """Tell whoever asked for results, if this is one."""
        if self.order.on_result is not None and job.stage in self.sinks:
            self.order.on_result(job.stage, job.frame, result)

    def idle(self, slack_seconds: float) -> None:
        """Nothing is due for so long: room for what must not disturb a frame."""
        if self.order.steady is not None and slack_seconds > 0:
            self.order.steady.idle(slack_seconds)
        self.show_progress(slack_seconds)

    @property
    def warm_up_is_over(self) -> bool:
        """Whether the first sensor's next frame is the first that counts."""
        return not self._warm and self.first.index >= self.order.warmup

    def end_warm_up(self) -> None:
        """Let the steady process settle, before a frame that counts; sensors wait until it has."""
        self._warm = True
        assert self.order.steady is not None
        before = time.monotonic()
        self.order.steady.warmed_up()
        spent = time.monotonic() - before
        self.clock.pause(spent)
        self.flow.put_off(spent)

    def put_off(self) -> None:
        """Let sensors go on from now, after frames of the warm-up held them up."""
        self.flow.put_off(self.hold.put_off())

    def show_progress(self, slack_seconds: float) -> None:
        """Say now and then how many of the frames were read: in slack, or seldom without."""
        if self.order.progress is None:
            return
        since = self.clock.now() - self._progress_at
        wait = PROGRESS_SECONDS if slack_seconds > AMPLE_SECONDS else 5 * PROGRESS_SECONDS
        if since >= wait:
            self._progress_at = self.clock.now()
            self.order.progress(max(0, self.first.index - self.order.warmup))


_HELD_UP_PERIODS = 0.5
"""Stages that were busy for so long when a frame is due hold it up; else they run beside it, as
those of another sensor's frame of the same instant do."""


class WarmUpHold:
    """Whether a frame has to wait for those of the warm-up.

    Not safe between threads; one that is called between two frames that count costs a comparison.

    Args:
        readers: All sensors of the run; of the first the warm-up's frames are counted.
        warmup: How many frames it has.
    """

    def __init__(self, clock: RunClock, readers: Sequence[SensorReader], warmup: int) -> None:
        self._clock = clock
        self._readers = readers
        self._warmup = warmup
        self._busy_since: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether all frames that were read so far belong to the warm-up."""
        return self._readers[0].index <= self._warmup > 0

    def busy(self) -> None:
        """Note that stages run from now on, if none did."""
        if self._busy_since is None:
            self._busy_since = self._clock.now()

    def idle(self) -> None:
        """Note that nothing runs any more."""
        self._busy_since = None

    def holds(self, reader: SensorReader) -> bool:
        """Whether a sensor's next frame waits until nothing runs."""
        if self._busy_since is None or not self.is_on:
            return False
        since, rate_hz = self._busy_since, reader.shape.rate_hz
        return rate_hz is None or (reader.due - since) * rate_hz > _HELD_UP_PERIODS

    def put_off(self) -> float:
        """Move all sensors by what the next frame of any was held up; the seconds."""
        dues = [one.due for one in self._readers if one.shape.rate_hz and not one.ended]
        held_up = max(0.0, self._clock.now() - min(dues)) if dues else 0.0
        self._clock.pause(held_up)
        return held_up
