"""Pipelines with times, and runs of them as an executor would have left them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from ridgeline.plan.realtime.event_loop import simulate_timing
from ridgeline.plan.realtime.timing import (
    CallSamples,
    PipelineTiming,
    SensorTiming,
    SimulatedExecutor,
    StageTiming,
)
from ridgeline.records.measurement import Environment
from ridgeline.records.pipeline_shape import (
    EdgePolicy,
    EdgeShape,
    PipelineShape,
    SensorShape,
    StageShape,
)
from ridgeline.records.realtime_run import RealtimeRun


def chain(
    times: Mapping[str, Sequence[float]],
    *,
    rate: float | None = 10.0,
    policy: EdgePolicy = "block",
    executor: SimulatedExecutor = "threads",
    cores: int | None = None,
    deadline: float | None = None,
    core_share: float = 1.0,
) -> PipelineTiming:
    """One camera through stages one after the other; times in seconds, one or one per frame."""
    stages = []
    source = "camera"
    for name in times:
        edge = EdgeShape(source=source, policy=policy)
        stages.append(StageShape(name=name, inputs=(edge,)))
        source = name
    shape = PipelineShape(
        name="chain",
        deadline_seconds=deadline,
        sensors=(SensorShape(name="camera", rate_hz=rate),),
        stages=tuple(stages),
    )
    return timing_of(shape, times, executor=executor, cores=cores, core_share=core_share)


def timing_of(
    shape: PipelineShape,
    times: Mapping[str, Sequence[float]],
    *,
    executor: SimulatedExecutor = "threads",
    cores: int | None = None,
    core_share: float = 1.0,
) -> PipelineTiming:
    """A pipeline of any shape whose sensors are punctual."""
    stages = {}
    for name, seconds in times.items():
        work = np.array(seconds, dtype=np.float64)
        samples = CallSamples(slots=np.arange(len(work)), work=work, before=np.zeros(len(work)))
        stages[name] = StageTiming(columns={"": samples}, core_share=core_share)
    return PipelineTiming(
        shape=shape,
        executor=executor,
        cores=cores,
        stages=stages,
        sensors={one.name: punctual(1) for one in shape.sensors},
        slots=max(len(one) for one in times.values()),
    )


def punctual(slots: int) -> SensorTiming:
    """Frames that come when they are due."""
    return SensorTiming(
        slots=np.arange(slots),
        stamped=np.zeros(slots),
        delay=np.zeros(slots),
        repeated=np.zeros(slots, dtype=np.bool_),
    )


def drifting(seed: int, frames: int, mean: float, spread: float) -> list[float]:
    """Times that stay slow or quick for some frames, as scenes do: log-normal, AR(1)."""
    draws = np.random.default_rng(seed)
    state, found = 0.0, []
    for noise in draws.standard_normal(frames):
        state = 0.9 * state + np.sqrt(1.0 - 0.81) * noise
        found.append(float(mean * np.exp(spread * state - spread**2 / 2)))
    return found


def run_of(timing: PipelineTiming, frames: int, **fields: Any) -> RealtimeRun:
    """What an executor would have written down, had the calls taken these times."""
    run = simulate_timing(timing, frames)
    calls = [
        msgspec.structs.replace(
            one,
            cpu_seconds=[
                float(timing.stages[one.stage].times.work[frame % len(work)])
                * timing.stages[one.stage].core_share
                for frame in one.frames
                for work in [timing.stages[one.stage].times.work]
            ],
        )
        for one in run.calls
    ]
    return msgspec.structs.replace(
        run,
        executor=timing.executor,
        calls=calls,
        environment=None if timing.cores is None else machine(timing.cores),
        **fields,
    )


def machine(cores: int) -> Environment:
    """A machine with so many cores."""
    return Environment(
        command=[], cwd="", date="", host_cpu="", cpu_count=cores, device="", python="", torch="",
        ridgeline="",
    )  # fmt: skip


def with_policy(timing: PipelineTiming, policy: EdgePolicy) -> PipelineTiming:
    """The same pipeline with other edges."""
    stages = tuple(
        msgspec.structs.replace(
            one,
            inputs=tuple(msgspec.structs.replace(edge, policy=policy) for edge in one.inputs),
        )
        for one in timing.shape.stages
    )
    return replace(timing, shape=msgspec.structs.replace(timing.shape, stages=stages))
