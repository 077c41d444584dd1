"""A process per stage; arrays and tensors lie in memory that all of them share.

The parent reads the sensors and holds the flow; stages get the places of their inputs and answer
with the place of their result, so a frame's data is copied once, where it is made. A process that
dies costs the frame that it had: it is said, and started again from what the parent knows, that is
without the state that the stage had gathered.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import msgspec

from ridgeline.errors import ChildDied, InputError
from ridgeline.frames.jobs import FrameJob
from ridgeline.realtime.executors.arenas import Arena, MemorySlot, SlotBook
from ridgeline.realtime.executors.calls import CallOutcome
from ridgeline.realtime.executors.dispatch import LOOK_SECONDS, Dispatch, SensorThreads
from ridgeline.realtime.executors.payloads import SharedPayload, pack, unpack_copy
from ridgeline.realtime.executors.sensors import SensorReader
from ridgeline.realtime.executors.state import ExecutionState, RunOrder
from ridgeline.realtime.executors.steadied import Steadied
from ridgeline.realtime.executors.stop import EndRequest
from ridgeline.realtime.executors.thread_share import ThreadShare
from ridgeline.realtime.executors.worker import (
    FAREWELLS,
    READY,
    REPLIES,
    STOP,
    CallMessage,
    ReplyMessage,
    StageWorker,
)
from ridgeline.realtime.pipeline import Pipeline

DEATHS_IN_A_ROW = 3
"""A stage whose process dies so often without finishing a frame is not started again."""
FAREWELL_SECONDS = 5.0
"""Time that a process has for its end; then it is killed."""

OnDeath = Literal["restart", "stop"]


@dataclass(slots=True)
class StageProcess:
    """A stage's process, as the parent sees it."""

    stage: str
    process: BaseProcess
    connection: Connection
    job: FrameJob | None = None
    """The call that it runs now."""
    offered: MemorySlot | None = None
    """The slot that it may lay the result in."""


class ProcessExecutor:
    """Runs a pipeline's stages in processes of their own."""

    def __init__(
        self, pipeline: Pipeline, order: RunOrder, stop: EndRequest, on_death: OnDeath = "restart"
    ) -> None:
        self.run = run = ExecutionState(pipeline, order, stop, self._release)
        self.workers = tuple(pipeline.code)
        self.told = Steadied()
        self._on_death = on_death
        _refuse_gpus(pipeline)
        names = [*pipeline.readers, *pipeline.code]
        self._arenas = [Arena(number) for number in range(len(names))]
        self._arena_of = dict(zip(names, self._arenas, strict=True))
        self._book = SlotBook()
        self._dispatch = Dispatch(run, self._send)
        self._sensors = SensorThreads(self._dispatch, self._lay_down)
        self._processes: dict[str, StageProcess] = {}
        self._deaths: dict[str, int] = {}
        self._poll = select.poll()
        self._stage_of: dict[int, str] = {}
        rates = [sensor.rate_hz for sensor in run.flow.graph.shape.sensors]
        known = [rate for rate in rates if rate is not None]
        self._period_seconds = None if order.tight or rates != known else 1 / max(known)

    def drive(self) -> None:
        """Run until the sensors have ended and nothing is left to do."""
        share = ThreadShare(len(self.workers))
        if note := share.take():
            self.run.notes.append(note)
        try:
            for stage in self.workers:
                self._start(stage)
        finally:
            share.give_back()
        for one in self._processes.values():
            self._await_ready(one)
        self.run.clock.begin()
        self._sensors.start()
        self._sensors.wait(self._listen)
        self._dispatch.drain(self._listen)
        if self._dispatch.error is not None:
            raise self._dispatch.error
        self._say_goodbye()

    def close(self) -> None:
        """End every process and give the shared memory back."""
        self.run.stop.came = True
        self._dispatch.close()
        self._sensors.join()
        for one in self._processes.values():
            one.connection.close()
            one.process.kill()
            one.process.join()
            one.process.close()
        self._processes = {}
        for arena in self._arenas:
            arena.close()

    def _start(self, stage: str) -> None:
        ours, theirs = multiprocessing.Pipe()
        worker = StageWorker(
            stage,
            self.run.pipeline.code[stage],
            self._arena_of[stage],
            self._arenas,
            steady=self.run.order.steady,
            warmup=self.run.order.warmup,
            period_seconds=self._period_seconds,
        )
        others = [ours, *(one.connection for one in self._processes.values())]
        process = multiprocessing.get_context("fork").Process(
            target=worker.main, args=(os.getpid(), theirs, others), name=stage, daemon=True
        )
        with warnings.catch_warnings():  # sensors have threads; the child uses nothing of theirs
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        self._processes[stage] = StageProcess(stage, process, ours)
        self._stage_of[ours.fileno()] = stage
        self._poll.register(ours, select.POLLIN)

    def _await_ready(self, one: StageProcess) -> None:
        try:
            assert one.connection.recv_bytes() == READY
        except (EOFError, OSError) as error:
            one.process.join()
            raise ChildDied(
                f"{one.stage}: its process ended before the first frame "
                f"({_how(one.process)}); run the pipeline in one thread to see where"
            ) from error

    def _lay_down(self, reader: SensorReader, data: Any) -> SharedPayload:
        """A sensor's frame in shared memory; in the sensor's thread."""
        arena = self._arena_of[reader.name]
        with self._dispatch.lock:
            offered = self._book.offer(arena.number)
        try:
            payload = pack(data, arena, offered)
        except BaseException:
            with self._dispatch.lock:
                self._book.untouched(offered)
            raise
        with self._dispatch.lock:
            self._filled(payload, offered)
        return payload

    def _filled(self, payload: SharedPayload, offered: MemorySlot | None) -> None:
        if payload.slot is None:
            self._book.untouched(offered)
        else:
            self._book.filled(payload.slot, offered)

    def _release(self, payload: SharedPayload) -> None:
        if payload.slot is not None:
            self._book.released(payload.slot)

    def _send(self, job: FrameJob) -> None:
        one = self._processes[job.stage]
        one.job = job
        one.offered = self._book.offer(self._arena_of[job.stage].number)
        message = CallMessage(job.mode, job.inputs, one.offered)
        try:
            one.connection.send_bytes(msgspec.msgpack.encode(message))
        except OSError:  # it has died, which `_listen` finds out
            return

    def _listen(self) -> None:
        """Take the answers that have come, or wait a moment for the next one."""
        for number, _ in self._poll.poll(LOOK_SECONDS * 1000):
            one = self._processes[self._stage_of[number]]
            try:
                message = one.connection.recv_bytes()
            except (EOFError, OSError):
                self._bury(one)
            else:
                if message != READY:
                    self._answered(one, REPLIES.decode(message))

    def _answered(self, one: StageProcess, reply: ReplyMessage) -> None:
        job = one.job
        assert job is not None
        self._deaths[one.stage] = 0
        outcome = CallOutcome(None, reply.started, reply.ended, reply.cpu_seconds,
                              failure=reply.failure, place=reply.place)  # fmt: skip
        payload = reply.payload
        wanted = self.run.order.on_result is not None and job.stage in self.run.sinks
        if payload is not None and wanted:
            self.run.show_result(job, unpack_copy(payload, self._arenas))
        with self._dispatch.lock:
            if payload is None:
                self._book.untouched(one.offered)
            else:
                self._filled(payload, one.offered)
            self._book.kept(one.stage, reply.kept)
            one.job = one.offered = None
        if self._dispatch.ended(job, outcome, payload):
            self._dispatch.collect_in_slack()

    def _bury(self, one: StageProcess) -> None:
        """A process has died: say so, start another or end, and give its frame up."""
        self._poll.unregister(one.connection)
        del self._stage_of[one.connection.fileno()]
        one.process.join()
        pid, how = one.process.pid, _how(one.process)
        job = one.job
        where = "between frames" if job is None else f"on frame {job.frame}"
        said = f"{one.stage}: its process {pid} ended {where} ({how})"
        deaths = self._deaths[one.stage] = self._deaths.get(one.stage, 0) + 1
        if deaths >= DEATHS_IN_A_ROW:
            raise ChildDied(
                f"{said}, {deaths} times in a row; run the pipeline in one thread to see where"
            )
        with self._dispatch.lock:
            one.connection.close()
            self._book.untouched(one.offered)
            self._book.kept(one.stage, ())
            self._start(one.stage)
        if self._on_death == "stop":
            self.run.stop.ask(said)
        else:
            self.run.notes.append(f"{said} and was started again, without its state")
        if job is not None:
            now = self.run.clock.now() + self.run.clock.origin
            failure = f"its process died ({how})"
            outcome = CallOutcome(None, now, now, 0.0, failure=failure, died=True)
            self._dispatch.ended(job, outcome, None)

    def _say_goodbye(self) -> None:
        for one in self._processes.values():
            try:
                one.connection.send_bytes(STOP)
                if self.run.order.steady is not None and one.connection.poll(FAREWELL_SECONDS):
                    told = FAREWELLS.decode(one.connection.recv_bytes())
                    self.told.add(one.stage, told.measures, told.collections)
            except (EOFError, OSError):
                self.run.notes.append(f"{one.stage}: its process died after its last frame")
            one.process.join(FAREWELL_SECONDS)


def _how(process: BaseProcess) -> str:
    code = process.exitcode
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"


def _refuse_gpus(pipeline: Pipeline) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        on_gpu = ", ".join(_stages_on_gpu(torch, pipeline)) or "this process"
        raise InputError(
            f"{on_gpu}: uses the GPU, which a process cannot share with those forked from it; "
            "run the pipeline with the executor threads"
        )


def _stages_on_gpu(torch: Any, pipeline: Pipeline) -> Iterable[str]:
    for stage, code in pipeline.code.items():
        if isinstance(code.call, torch.nn.Module) and any(
            weight.is_cuda for weight in code.call.parameters()
        ):
            yield stage
