"""A pipeline run as an engineer means it: at its frame rate, and once in a tight loop beside.

Benchmarks call a model again and again and keep caches warm and clocks high; a camera leaves the
processor idle between two frames, and the same stage takes longer. So a run is paced, and a short
second one without waiting, of a second copy of the pipeline, says by how much that flatters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ridgeline.errors import InputError, RidgelineError
from ridgeline.frames.outcomes import call_seconds, measured_calls
from ridgeline.realtime.execute import ExecutorName, execute
from ridgeline.realtime.executors.processes import OnDeath
from ridgeline.realtime.pipeline import Pipeline, read_pipeline
from ridgeline.realtime.steady import SteadyProcess
from ridgeline.records.realtime_run import RealtimeRun

PROGRESS_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How a pipeline is run; what is judged of it stands in `GateLimits`."""

    frames: int = 500
    """Frames of the first sensor after the warm-up; from some 370 on a 99th percentile is bounded
    from both sides."""
    warmup: int = 10
    """Leading frames that statistics leave out."""
    executor: ExecutorName = "inline"
    on_death: OnDeath = "restart"
    """What happens when a stage's process dies."""
    steady: bool = False
    """Take measures against jitter."""
    tight_frames: int = 100
    """Frames of the tight loop, at most those of the run; 0: none."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("frames", self.frames, 1),
            ("warmup", self.warmup, 0),
            ("tight-frames", self.tight_frames, 0),
        ):
            if value < least:
                raise InputError(f"--{name} {value}: give {least} or more")


def declared_pipeline(path: str, deadline_seconds: float | None = None) -> Pipeline:
    """A fresh copy of the pipeline of a file, with another deadline where one is given.

    Args:
        path: `pipeline.py`, or `pipeline.py:NAME`.
        deadline_seconds: None: the pipeline's own.
    """
    pipeline = read_pipeline(path)
    if deadline_seconds is not None:
        pipeline.deadline_seconds = deadline_seconds
    return pipeline


def run_paced(
    pipeline: Pipeline,
    settings: RunSettings,
    *,
    again: Callable[[], Pipeline] | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> RealtimeRun:
    """Run a pipeline at its sensors' rates, and return every call and every fate.

    Args:
        pipeline: Its stages keep the state that the run leaves them with.
        settings: How long, and by which executor.
        again: Makes a second, fresh copy for the tight loop; None: no tight loop.
        on_progress: Told what is under way.
    """
    tell = on_progress or (lambda _: None)
    asked = settings.warmup + settings.frames
    run = execute(
        pipeline,
        executor=settings.executor,
        frames=settings.frames,
        warmup=settings.warmup,
        steady=SteadyProcess() if settings.steady else None,
        observe=True,
        on_death=settings.on_death,
        progress=_told_by_steps(asked, tell),
    )
    if again is None or settings.tight_frames == 0 or run.interrupted:
        return run
    frames = min(settings.tight_frames, settings.frames)
    tell(f"the tight loop: {frames} frames without waiting")
    try:
        tight = execute(again(), frames=frames, warmup=settings.warmup, tight=True)
    except RidgelineError as error:  # the run itself stands
        return msgspec.structs.replace(run, notes=[*run.notes, f"no tight loop: {error}"])
    if tight.interrupted:
        return msgspec.structs.replace(run, notes=[*run.notes, "the tight loop was interrupted"])
    return msgspec.structs.replace(run, tight_loop=_stage_seconds(tight))


def _told_by_steps(asked: int, tell: Callable[[str], None]) -> Callable[[int], None]:
    """Tell of frames that are done, a bounded number of times however long the run."""
    told = -1

    def progress(done: int) -> None:
        nonlocal told
        step = done * PROGRESS_STEPS // asked
        if step > told:
            told = step
            tell(f"{done} of {asked} frames")

    return progress


def _stage_seconds(run: RealtimeRun) -> dict[str, list[float]]:
    """Seconds of each stage's calls after the warm-up."""
    return {
        calls.stage: call_seconds(calls, measured_calls(run, calls)).tolist() for calls in run.calls
    }
