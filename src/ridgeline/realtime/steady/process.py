"""Every measure against jitter for one process, taken at the start and given back at the end.

It also counts what the warm-up frames spared those that count: page faults and first calls.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.realtime.steady.affinity import CoreAffinity, threads_per_worker
from ridgeline.realtime.steady.collector import SlackCollector
from ridgeline.realtime.steady.cuda_graphs import CudaRecorder, RecordedStage, gpu_of
from ridgeline.realtime.steady.kept_memory import MemoryLock, RetainedHeap
from ridgeline.realtime.steady.priority import PRIORITY, FifoPriority
from ridgeline.realtime.steady.surroundings import look_around
from ridgeline.realtime.steady.wake_up import PromptWakeUp
from ridgeline.records.realtime_run import Collection, SteadyMeasure

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
import resource

from ridgeline import quantity

SENSORS = "sensors"
"""What the thread that starts a run is called; it reads the sensors."""


class SteadyProcess:
    """A process that runs evenly, by all measures that the system allows.

    Its workers are pinned and first in line, its memory is kept, its garbage collected in slack.
    Everything that it changes belongs to this process and its threads, so it is gone with the
    process however that ends; `stop` puts it back in a process that lives on. In a worker process
    (a copy of this object, after a fork) `enter_worker` begins again for that process.

    Args:
        clock: Gives the times of collections, in seconds.
        root: Where the kernel's files are; tests have a tree of their own.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, root: Path = Path("/")
    ) -> None:
        self._clock = clock
        self._root = root
        self._stopped = False
        self._surroundings: list[SteadyMeasure] = []
        self._workers: list[str] = []
        self._recorded: list[RecordedStage] = []
        self._renew()

    def _renew(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()  # the parent's may have been held as it forked
        self._affinity = CoreAffinity(self._root)
        self._priority = FifoPriority()
        self._collector = SlackCollector(self._clock)
        self._wake_up = PromptWakeUp(self._root)
        self._memory = MemoryLock(self._root)
        self._heap = RetainedHeap()
        self._warm_up = WarmUp(self._clock)

    @property
    def measures(self) -> list[SteadyMeasure]:
        """What was asked of this process and its system, with their answers so far."""
        with self._lock:
            own = (self._affinity, self._priority, self._collector, self._memory, self._heap,
                   self._wake_up, self._warm_up)  # fmt: skip
            return [*(one.measure for one in own), *self._graphs(), *self._surroundings]

    def _graphs(self) -> list[SteadyMeasure]:
        if not self._recorded:
            return []
        granted = all(stage.recorded for stage in self._recorded)
        said = "; ".join(stage.said for stage in self._recorded)
        return [SteadyMeasure(name="cuda graphs", granted=granted, detail=said)]

    @property
    def collections(self) -> list[Collection]:
        """Every garbage collection of this process since `start`."""
        return self._collector.collections

    def prepare(self, pipeline: Pipeline) -> Pipeline:
        """The pipeline with its static GPU stages recorded during the warm-up; before `start`."""
        if "torch" not in sys.modules:
            return pipeline
        code = {}
        for name, stage in pipeline.code.items():
            device = gpu_of(stage.call)
            if device is not None:
                recorded = RecordedStage(name, stage.call, device, CudaRecorder())
                self._recorded.append(recorded)
                code[name] = replace(stage, call=recorded)
        return pipeline.changed(code=code) if code else pipeline

    def start(self, workers: list[str]) -> None:
        """Prepare the process, and the calling thread, which reads the sensors."""
        self._workers = list(workers)
        self._begin()
        self._surroundings = look_around(self._root, own=os.getpid(), priority=PRIORITY)
        thread = threading.get_native_id()
        self._collector.enter(SENSORS)
        self._priority.enter(SENSORS, thread)
        self._wake_up.enter(thread)

    def _begin(self) -> None:
        self._warm_up.mark()
        self._affinity.plan(self._workers)
        self._heap.begin()
        self._collector.begin()
        self._wake_up.begin()
        self._memory.begin()

    def enter_worker(self, worker: str) -> None:
        """Pin the calling thread and put it first in line."""
        if os.getpid() != self._process:
            self._collector.leave_to_child()
            self._renew()
            self._surroundings = []
            self._begin()
        with self._lock:
            thread = threading.get_native_id()
            self._collector.enter(worker)
            self._affinity.enter(worker, thread)
            self._priority.enter(worker, thread)
            self._wake_up.enter(thread)

    def warmed_up(self) -> None:
        """Freeze what the warm-up has built, and raise the threads that it computes with."""
        with self._lock:
            self._collector.freeze()
            if threads_per_worker() > 1:
                self._raise_pools()
            self._warm_up.mark()

    def _raise_pools(self) -> None:
        """Treat the threads of libraries, which compute for the workers, as the workers."""
        for thread in _threads() - {thread.native_id for thread in threading.enumerate()}:
            if len(self._workers) == 1:  # else they were started by a pinned worker, and are there
                self._affinity.enter_pool(self._workers[0], thread)
            self._priority.enter("the threads of torch", thread)

    def idle(self, slack_seconds: float) -> None:
        """Collect garbage where the slack is long enough for it."""
        self._collector.idle(slack_seconds)

    def stop(self) -> None:
        """Put everything back; a second call does nothing."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            self._warm_up.mark()
            living = _threads()
            self._wake_up.undo(threading.get_native_id())
            self._priority.undo(living)
            self._affinity.undo(living)
            self._memory.undo()
            self._collector.undo()
            self._heap.undo()


def _threads() -> set[int]:
    """The threads of this process, by the kernel's numbers."""
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return {thread.native_id or 0 for thread in threading.enumerate()}


NAME = "warm-up"


class WarmUp:
    """Counts page faults before and after the frames that warm up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: list[tuple[float, int]] = []

    def mark(self) -> None:
        """Called at the start, after the warm-up and at the end."""
        self._marks.append((self._clock(), _page_faults()))

    @property
    def measure(self) -> SteadyMeasure:
        """Time and page faults of the warm-up, and page faults since."""
        if len(self._marks) < 2:
            detail = "no frames were run before those that count"
            return SteadyMeasure(name=NAME, granted=False, detail=detail)
        (start, before), (warm, then), *rest = self._marks
        _, after = rest[0] if rest else (0.0, _page_faults())
        return SteadyMeasure(
            name=NAME,
            granted=True,
            detail=f"{quantity.seconds(warm - start)} and {then - before:,} page faults before "
            f"the frames that count, {after - then:,} in them",
        )


def _page_faults() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt + used.ru_majflt
