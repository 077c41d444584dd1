"""All stages in one thread: the deepest that has something to do runs first.

So a frame that has begun is finished before the next one is read in its place on the first edge;
sensors are looked at between any two calls, and what was due while a stage ran arrives then, with
the stamp of when it was due.
"""

from __future__ import annotations

import time

from ridgeline.realtime.executors.sensors import LONGEST_SLEEP_SECONDS, SensorReader
from ridgeline.realtime.executors.state import ExecutionState, RunOrder
from ridgeline.realtime.executors.steadied import Steadied
from ridgeline.realtime.executors.stop import EndRequest
from ridgeline.realtime.executors.streams import caller_of
from ridgeline.realtime.pipeline import Pipeline

WORKER = "inline"
"""The one worker's name."""


class InlineExecutor:
    """Runs a pipeline in the calling thread."""

    workers = (WORKER,)

    def __init__(self, pipeline: Pipeline, order: RunOrder, stop: EndRequest) -> None:
        self.run = run = ExecutionState(pipeline, order, stop)
        self.told = Steadied()
        self._flow = run.flow
        self._callers = {
            stage.name: caller_of(stage, pipeline.code[stage.name])
            for stage in run.flow.graph.shape.stages
        }
        self._depth = {name: place for place, name in enumerate(reversed(run.flow.graph.order))}
        self._woken: set[str] = set()
        self._group = run.group(run.readers)
        self._next: SensorReader | None = None

    def drive(self) -> None:
        """Run until the sensors have ended and nothing is left to do."""
        run = self.run
        if run.order.steady is not None:
            run.order.steady.enter_worker(WORKER)
        run.clock.begin()
        self._look_for_next()
        while not run.stop.came:
            reader = self._next
            if reader is not None and self._is_due(reader) and not self._is_held(reader):
                self._read(reader)
            elif self._woken:
                self._call(self._deepest())
            elif reader is None:
                break
            elif self._group.waits_for_room(reader):
                self._read_at_once()
            else:
                self._wait(reader)
        self._woken.update(run.stop_sensors(run.readers))
        self._woken.update(self._depth)
        while self._woken:
            self._call(self._deepest())

    def _is_due(self, reader: SensorReader) -> bool:
        return not self._group.waits_for_room(reader) and reader.due <= self.run.clock.now()

    def _is_held(self, reader: SensorReader) -> bool:
        """Whether frames of the warm-up go first; those done, sensors go on from now."""
        hold = self.run.hold
        if not hold.holds(reader):
            return False
        if not self._woken:
            hold.idle()
            self.run.put_off()
        return True

    def _look_for_next(self) -> None:
        self._next = self._group.next(self._flow.room)

    def _read(self, reader: SensorReader) -> None:
        if self.run.warm_up_is_over:
            self.run.end_warm_up()
            return
        self._woken.update(self.run.arrive(reader, reader.read()))
        self._look_for_next()

    def _read_at_once(self) -> None:
        self.run.hold.idle()
        self.run.idle(0.0)
        self._look_for_next()  # who had no room may have some now
        if self._next is not None:
            if self.run.order.tight:
                self.run.clock.skip_to(self._next.due)
            self._read(self._next)

    def _wait(self, reader: SensorReader) -> None:
        self.run.hold.idle()
        self.run.idle(reader.due - self.run.clock.now())
        left = reader.due - self.run.clock.now()
        if left > 0:
            time.sleep(min(left, LONGEST_SLEEP_SECONDS))

    def _deepest(self) -> str:
        """The stage to look at next."""
        if len(self._woken) == 1:
            (only,) = self._woken
            return only
        return min(self._woken, key=self._depth.__getitem__)

    def _call(self, stage: str) -> None:
        self._woken.discard(stage)
        job = self._flow.take(stage, self.run.clock.now())
        if job is not None:
            self.run.hold.busy()
            outcome = self._callers[stage](job.mode, job.inputs)
            self._woken.update(self.run.ended(job, outcome, outcome.output))
            if not outcome.failure:
                self.run.show_result(job, outcome.output)
        self._woken.update(self._flow.woken())

    def close(self) -> None:
        """Nothing is left behind by one thread."""
