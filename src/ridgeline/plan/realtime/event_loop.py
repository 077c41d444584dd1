"""A pipeline on a simulated clock: the logic that executors drive, with times instead of code.

Three things happen: a frame is due at a sensor, a frame arrives, a call ends. In between, workers
take what `FrameFlow` gives them. Inline, one worker reads the sensors that are due, then calls the
deepest stage that has something to do; else every stage and every sensor has a worker of its own.
"""

from __future__ import annotations

import heapq
from itertools import count

from ridgeline.errors import InputError
from ridgeline.frames.call_log import MeasuredTimes
from ridgeline.frames.flow import FrameFlow
from ridgeline.frames.jobs import FrameJob
from ridgeline.plan.realtime.contention import SharedCores
from ridgeline.plan.realtime.draws import DrawnCalls, source_slots
from ridgeline.plan.realtime.sensors import SimulatedSensor
from ridgeline.plan.realtime.timing import PipelineTiming
from ridgeline.records.realtime_run import RealtimeRun


def simulate_timing(timing: PipelineTiming, slots: int, seed: int = 0) -> RealtimeRun:
    """Simulate a pipeline with its times.

    Args:
        timing: The pipeline and its times.
        slots: Frames of the first sensor, gaps included.
        seed: For the blocks of frames beyond those that were measured.

    Raises:
        InputError: A graph that is none, or a stage that degrades to a call of unknown time.
    """
    return _EventLoop(timing, slots, seed).run()


class _EventLoop:
    def __init__(self, timing: PipelineTiming, slots: int, seed: int) -> None:
        self.timing = timing
        self.flow = FrameFlow(timing.shape)
        self.inline = timing.executor == "inline"
        self.stages = {stage.name: stage for stage in timing.shape.stages}
        self.order = tuple(reversed(self.flow.graph.order))
        """The deepest stage first."""
        self.cores = SharedCores(None if self.inline else timing.cores)
        self.jobs: dict[int, FrameJob] = {}
        self.margins: dict[int, tuple[float, float]] = {}
        """Job → when its call itself begins, and what follows its end."""
        self.on_processor = dict.fromkeys(timing.shape.processors, 0)
        self.reading = False
        """Inline, the one worker reads a sensor."""
        drawn = source_slots(timing.slots, slots, first=timing.warmup_slots, seed=seed)
        first = timing.shape.sensors[0]
        self.sensors = {
            one.name: SimulatedSensor(timing, one, first, drawn) for one in timing.shape.sensors
        }
        self.leader = self.sensors[first.name]
        self.calls: dict[str, DrawnCalls] = {}
        self.cheaper: dict[str, DrawnCalls] = {}
        self._draw_calls()
        self.ties = count()
        self.events: list[tuple[float, int, bool, SimulatedSensor]] = []
        """Time, order of coming, whether the frame arrives or is only due, whose it is."""

    def _draw_calls(self) -> None:
        for name, stage in self.timing.stages.items():
            slots = self.sensors[self.flow.graph.leads[name]].source
            self.calls[name] = DrawnCalls.of(stage.times, slots, stage.scale)
            if stage.cheaper is not None:
                self.cheaper[name] = DrawnCalls.of(stage.cheaper, slots, stage.scale)
            elif self.stages[name].on_miss == "degrade":
                raise InputError(
                    f"stage {name} degrades on a miss, and no time of its cheaper call is known;"
                    f" give it, as --what-if '{name}.cheaper=5ms'"
                )

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> RealtimeRun:
        for sensor in self.sensors.values():
            self._next_frame(sensor)
        self._work()
        while self._happens():
            self._work()
        return RealtimeRun(
            shape=self.timing.shape,
            executor="simulated",
            seconds=self.cores.now,
            calls=self.flow.calls(),
            fates=self.flow.fates(),
            sensor_faults=self.flow.faults,
        )

    def _happens(self) -> bool:
        """Let the next thing happen; of two at one time a call ends first. False: nothing is."""
        ended = self.cores.next_end()
        if ended is not None and (not self.events or ended[0] <= self.events[0][0]):
            self.cores.advance(ended[0])
            self._end(ended[1])
        elif self.events:
            at, _, arrives, sensor = heapq.heappop(self.events)
            self.cores.advance(max(self.cores.now, at))
            if arrives:
                self._arrive(sensor)
            else:
                self._due(sensor)
        else:
            return False
        return True

    # -- sensors -----------------------------------------------------------------------------------

    def _next_frame(self, sensor: SimulatedSensor) -> None:
        """Put the next frame on the clock; one without a rate is read when there is room."""
        if sensor.over:
            self._stop(sensor)
        elif sensor.period is not None:
            self._put(sensor.due, sensor, arrives=False)

    def _stop(self, sensor: SimulatedSensor) -> None:
        if sensor.stopped:
            return
        sensor.stopped = True
        self.flow.stop(sensor.name, self.cores.now)
        if sensor is self.leader:
            for other in self.sensors.values():
                self._stop(other)

    def _put(self, at: float, sensor: SimulatedSensor, *, arrives: bool) -> None:
        heapq.heappush(self.events, (at, next(self.ties), arrives, sensor))

    def _due(self, sensor: SimulatedSensor) -> None:
        if sensor.stopped:
            return
        if self.inline:
            sensor.waiting = True
            return
        self._put(self.cores.now + sensor.delay, sensor, arrives=True)

    def _arrive(self, sensor: SimulatedSensor) -> None:
        self.reading = False
        sensor.waiting = False
        if sensor.stopped:
            return
        self.flow.arrive(sensor.name, sensor.frame, sensor.stamp, self.cores.now, None)
        sensor.advance(self.cores.now)
        self._next_frame(sensor)

    def _read(self) -> bool:
        """The one worker reads a sensor: one that is due, or one without a rate and with room."""
        for sensor in self.sensors.values():
            if sensor.stopped or not (sensor.waiting or self._takes_next(sensor)):
                continue
            self._begin_reading(sensor)
            return True
        return False

    def _takes_next(self, sensor: SimulatedSensor) -> bool:
        return (
            sensor.period is None
            and not sensor.stopped
            and not sensor.waiting
            and self.flow.room(sensor.name)
        )

    def _begin_reading(self, sensor: SimulatedSensor) -> None:
        if sensor.period is None:
            sensor.stamp_now(self.cores.now)
        sensor.waiting = True
        self.reading = self.inline
        self._put(self.cores.now + sensor.delay, sensor, arrives=True)

    # -- workers -----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Give every worker that is free what there is to do."""
        if self.inline:
            self._work_inline()
            return
        for sensor in self.sensors.values():
            if self._takes_next(sensor):
                self._begin_reading(sensor)
        taken = True
        while taken:
            taken = False
            for stage in self.order:
                taken = self._take(stage) or taken

    def _work_inline(self) -> None:
        if self.reading or self.jobs:
            return
        if any(sensor.waiting and not sensor.stopped for sensor in self.sensors.values()):
            self._read()
            return
        # Twice: what a stage holds or skips goes on at once, and deeper stages were asked before.
        for stage in (*self.order, *self.order):
            if self._take(stage):
                return
        self._read()

    def _take(self, stage: str) -> bool:
        processor = self.stages[stage].processor
        most = self.timing.shape.processors.get(processor)
        if most is not None and self.on_processor[processor] >= most:
            return False
        job = self.flow.take(stage, self.cores.now)
        if job is None:
            return False
        drawn = (self.cheaper if job.mode == "degrade" else self.calls)[stage]
        before, work = drawn.before[job.frame], drawn.work[job.frame]
        share = self.timing.stages[stage].core_share if processor == "cpu" else 0.0
        self.cores.add(job.number, before + work + drawn.after, share)
        self.jobs[job.number] = job
        self.margins[job.number] = (self.cores.now + before, drawn.after)
        if most is not None:
            self.on_processor[processor] += 1
        return True

    def _end(self, number: int) -> None:
        self.cores.remove(number)
        job = self.jobs.pop(number)
        processor = self.stages[job.stage].processor
        if processor in self.on_processor:
            self.on_processor[processor] -= 1
        started, after = self.margins.pop(number)
        now = self.cores.now
        times = MeasuredTimes(started=started, ended=max(started, now - after))
        self.flow.finish(job, now, None, times)
