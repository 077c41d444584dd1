"""A pipeline run for so many frames, by one of the executors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Literal

import msgspec

from ridgeline.errors import InputError
from ridgeline.hardware.environment import environment
from ridgeline.realtime.executors.inline import InlineExecutor
from ridgeline.realtime.executors.processes import OnDeath, ProcessExecutor
from ridgeline.realtime.executors.state import ExecutionState, RunOrder
from ridgeline.realtime.executors.steadied import Steadied
from ridgeline.realtime.executors.stop import EndRequest
from ridgeline.realtime.executors.threads import ThreadExecutor
from ridgeline.realtime.observe.run_observer import RunObserver
from ridgeline.realtime.pipeline import Pipeline
from ridgeline.realtime.steady import Steadiness
from ridgeline.records.realtime_run import RealtimeRun

ExecutorName = Literal["inline", "threads", "processes"]


def execute(
    pipeline: Pipeline,
    *,
    executor: ExecutorName = "inline",
    frames: int,
    warmup: int = 10,
    steady: Steadiness | None = None,
    tight: bool = False,
    observe: bool = False,
    progress: Callable[[int], None] | None = None,
    on_result: Callable[[str, int, object], None] | None = None,
    on_death: OnDeath = "restart",
) -> RealtimeRun:
    """Run a pipeline and return every call and every fate.

    Args:
        pipeline: Its stages keep whatever state the run gives them, but for `processes`, where
            each lives in a process of its own.
        executor: Where the stages run: all in this thread, each in its own, each in its process.
        frames: Frames of the first sensor after the warm-up; other sensors run beside it.
        warmup: Leading frames that statistics leave out.
        steady: Measures against jitter; None: none.
        tight: Ignore the sensors' rates: each next frame as soon as there is room.
        observe: Count what each call uses and watch what else runs, for blame; under one percent
            of a core.
        progress: Called now and then with the frames that are done.
        on_result: Called with sink, frame and result as they come out.
        on_death: What happens when a stage's process dies: it is started again, without the state
            that the stage had, or the run ends and returns what there is.

    Raises:
        InputError: The pipeline cannot run, or not so.
        ChildDied: A stage's process dies again and again.

    Ctrl-C ends the run after the frame in flight and returns what there is.
    """
    if frames < 1 or warmup < 0:
        raise InputError(f"{frames} frames after {warmup} of warm-up: give at least 1 and 0")
    stop = EndRequest()
    if steady is not None:
        pipeline = steady.prepare(pipeline)
    order = RunOrder(frames=frames, warmup=warmup, tight=tight, steady=steady, progress=progress,
                     on_result=on_result)  # fmt: skip
    observer = RunObserver(pipeline, warmup + frames) if observe else None
    observed = observer.metered if observer else pipeline
    driver: InlineExecutor | ThreadExecutor | ProcessExecutor
    if executor == "inline":
        driver = InlineExecutor(observed, order, stop)
    elif executor == "threads":
        driver = ThreadExecutor(observed, order, stop)
    else:
        driver = ProcessExecutor(observed, order, stop, on_death)
    run = driver.run
    if steady is not None:
        steady.start(list(driver.workers))
    try:
        if observer is not None:
            observer.start()
        with stop.on_interrupt():
            driver.drive()
    finally:
        driver.close()
        if observer is not None:
            observer.stop()
        if steady is not None:
            steady.stop()
    written = _written(run, executor, driver.told)
    return observer.add_to(written, run.clock.origin) if observer else written


def _written(run: ExecutionState, executor: ExecutorName, told: Steadied) -> RealtimeRun:
    """All that a run has left."""
    notes = list(run.notes)
    if run.stop.reason:
        notes.append(f"{run.stop.reason} after {run.first.index} frames of {run.first.name}")
    steady, origin = run.order.steady, run.clock.origin
    if steady is not None:
        told = told.beside(steady)
    return RealtimeRun(
        shape=run.flow.graph.shape,
        executor=executor,
        environment=environment(device=_device()),
        seconds=run.clock.now(),
        interrupted=run.stop.interrupted,
        warmup_frames=run.order.warmup,
        calls=run.flow.calls(),
        fates=run.flow.fates(),
        steady=told.merged_measures(),
        sensor_faults=run.flow.faults,
        collections=[
            msgspec.structs.replace(one, started=one.started - origin, ended=one.ended - origin)
            for one in told.collections
        ],
        notes=notes,
    )


def _device() -> str:
    """The GPU's name where this process uses one; empty: it does not."""
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and torch.cuda.is_initialized()
    return str(torch.cuda.get_device_name()) if torch is not None and on_gpu else ""
