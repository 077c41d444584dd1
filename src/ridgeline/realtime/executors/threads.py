"""A thread per stage and per sensor; values are passed on as they are.

Stages overlap where their code leaves Python's lock alone, as torch and NumPy do in long calls.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue

from ridgeline.frames.jobs import FrameJob
from ridgeline.realtime.executors.dispatch import Dispatch, SensorThreads
from ridgeline.realtime.executors.state import ExecutionState, RunOrder
from ridgeline.realtime.executors.steadied import Steadied
from ridgeline.realtime.executors.stop import EndRequest
from ridgeline.realtime.executors.streams import caller_of
from ridgeline.realtime.executors.thread_share import ThreadShare
from ridgeline.realtime.pipeline import Pipeline


class ThreadExecutor:
    """Runs a pipeline's stages in threads of this process."""

    def __init__(self, pipeline: Pipeline, order: RunOrder, stop: EndRequest) -> None:
        self.run = ExecutionState(pipeline, order, stop)
        self.told = Steadied()
        self.workers = tuple(pipeline.code)
        self._share = ThreadShare(len(self.workers))
        self._jobs: dict[str, SimpleQueue[FrameJob | None]] = {
            name: SimpleQueue() for name in self.workers
        }
        self._dispatch = Dispatch(self.run, self._send)
        self._sensors = SensorThreads(self._dispatch, lambda _reader, data: data)
        self._threads = [
            threading.Thread(target=self._work, args=(name,), name=f"stage {name}", daemon=True)
            for name in self.workers
        ]

    def drive(self) -> None:
        """Run until the sensors have ended and nothing is left to do."""
        if note := self._share.take():
            self.run.notes.append(note)
        for thread in self._threads:
            thread.start()
        self.run.clock.begin()
        self._sensors.start()
        self._sensors.wait(self._dispatch.wait_for_change)
        self._dispatch.drain(self._dispatch.wait_for_change)
        if self._dispatch.error is not None:
            raise self._dispatch.error

    def close(self) -> None:
        """End the threads that wait for work; one that hangs in a stage is left alone."""
        self.run.stop.came = True
        self._dispatch.close()
        self._sensors.join()
        for jobs in self._jobs.values():
            jobs.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(1.0)
        self._share.give_back()

    def _send(self, job: FrameJob) -> None:
        self._jobs[job.stage].put(job)

    def _work(self, stage: str) -> None:
        shape = self.run.flow.graph.stages[stage]
        caller = caller_of(shape, self.run.pipeline.code[stage])
        jobs = self._jobs[stage]
        try:
            self._share.enter_thread()
            if self.run.order.steady is not None:
                self.run.order.steady.enter_worker(stage)
            while (job := jobs.get()) is not None:
                outcome = caller(job.mode, job.inputs)
                if not outcome.failure:
                    self.run.show_result(job, outcome.output)
                if self._dispatch.ended(job, outcome, outcome.output):
                    self._dispatch.collect_in_slack()
        except BaseException as error:  # the main thread raises it
            self._dispatch.fail(error)
