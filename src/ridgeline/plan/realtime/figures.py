"""What a run came to, measured or simulated: the same figures from the same columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from ridgeline.frames.graph import StageGraph
from ridgeline.frames.outcomes import (
    LOST,
    Array,
    call_seconds,
    measured_calls,
    measured_fates,
    sink_ages,
)
from ridgeline.plan.realtime.draws import block_slots
from ridgeline.plan.realtime.timing import PipelineTiming
from ridgeline.records.realtime_run import FrameFates, RealtimeRun
from ridgeline.records.realtime_simulation import (
    Bounds,
    SimulatedAge,
    SimulatedPipeline,
    SimulatedSink,
    SimulatedStage,
)

RESAMPLES = 200
"""Resampled runs behind an interval."""


def pipeline_figures(
    timing: PipelineTiming, run: RealtimeRun, change: str, took_seconds: float
) -> SimulatedPipeline:
    """The figures of one simulated variant."""
    bounds = worker_seconds(timing)
    busiest = max(bounds, key=lambda name: bounds[name])
    return SimulatedPipeline(
        change=change,
        executor=timing.executor,
        cores=timing.cores,
        deadline_seconds=timing.shape.deadline_seconds,
        sum_seconds=sum(one.mean_seconds for one in timing.stages.values()) / timing.streams,
        bound_per_second=1.0 / bounds[busiest] if bounds[busiest] > 0.0 else 0.0,
        bound_by=busiest,
        sinks=sink_figures(run),
        stages=_stages(run),
        answered_in_seconds=took_seconds,
    )


def worker_seconds(timing: PipelineTiming) -> dict[str, float]:
    """Seconds that each worker, processor and core is busy per frame of the first sensor.

    The slowest of them bounds the rate, however the stages overlap.
    """
    first = timing.shape.sensors[0]
    rates = {one.name: one.rate_hz for one in timing.shape.sensors}
    leads = leading_sensors(timing)
    stage_seconds: dict[str, float] = {}
    processors: dict[str, float] = {}
    on_cores = 0.0
    for stage in timing.shape.stages:
        rate = rates[leads[stage.name]]
        ratio = rate / first.rate_hz if rate and first.rate_hz else 1.0
        one = timing.stages[stage.name]
        seconds = ratio * (one.mean_seconds + float(one.times.before.mean()) + one.times.after)
        stage_seconds[f"stage {stage.name}"] = seconds
        processors[stage.processor] = processors.get(stage.processor, 0.0) + seconds
        if stage.processor == "cpu":
            on_cores += seconds * one.core_share
    if timing.executor == "inline":
        return {"one thread for all stages": sum(stage_seconds.values())}
    found = dict(stage_seconds)
    for name, most in timing.shape.processors.items():
        found[f"processor {name}"] = processors.get(name, 0.0) / most
    if timing.cores is not None:
        found[f"{timing.cores} core{'s' if timing.cores > 1 else ''}"] = on_cores / timing.cores
    return found


def leading_sensors(timing: PipelineTiming) -> Mapping[str, str]:
    """Stage → the sensor whose frames lead it."""
    return StageGraph(timing.shape).leads


def sink_figures(run: RealtimeRun) -> tuple[SimulatedSink, ...]:
    """The fates at each sink, warm-up left out."""
    return tuple(_sink(run, name) for name in run.shape.sinks)


def _sink(run: RealtimeRun, name: str) -> SimulatedSink:
    fates = measured_fates(run, name)
    counts = Counter(fates.kinds)
    frames = len(fates.kinds) - counts["unfinished"]
    missed = frames - counts["delivered"]
    ages = sink_ages(run, name)
    begin = min(fates.arrived, default=0.0)
    end = max((at for at in fates.ended if at is not None), default=begin)
    lost = Counter(
        f"{place}: {reason}"
        for kind, place, reason in zip(fates.kinds, fates.places, fates.reasons, strict=True)
        if kind in LOST
    )
    return SimulatedSink(
        sink=name,
        sensor=fates.sensor,
        frames=frames,
        delivered=counts["delivered"],
        late=counts["late"],
        dropped=counts["dropped"],
        failed=counts["failed"],
        miss_share=missed / frames if frames else None,
        miss_interval=_miss_interval(fates) if frames else None,
        age=_age(ages) if len(ages) else None,
        results_per_second=len(ages) / (end - begin) if end > begin else 0.0,
        losses=dict(lost.most_common()),
    )


def _age(ages: Array) -> SimulatedAge:
    middle, tail = np.percentile(ages, (50, 99))
    draws = _resampled(ages)
    p50, p99 = np.percentile(draws, (50, 99), axis=1)
    return SimulatedAge(
        p50=float(middle),
        p99=float(tail),
        worst=float(ages.max()),
        mean=float(ages.mean()),
        p50_interval=_bounds(p50),
        p99_interval=_bounds(p99),
    )


def _miss_interval(fates: FrameFates) -> Bounds:
    missed = np.array(
        [kind != "delivered" for kind in fates.kinds if kind != "unfinished"], dtype=np.float64
    )
    return _bounds(_resampled(missed).mean(axis=1))


def _resampled(values: Array) -> Array:
    """Runs of as many frames, from blocks of consecutive ones that go round the end."""
    length = block_slots(len(values))
    draws = np.random.default_rng(0)
    starts = draws.integers(0, len(values), size=(RESAMPLES, -(-len(values) // length), 1))
    places = (starts + np.arange(length)).reshape(RESAMPLES, -1)[:, : len(values)]
    return np.asarray(values[places % len(values)])


def _bounds(found: Array) -> Bounds:
    low, high = np.percentile(found, (2.5, 97.5))
    return float(low), float(high)


def _stages(run: RealtimeRun) -> tuple[SimulatedStage, ...]:
    found = []
    for calls in run.calls:
        places = measured_calls(run, calls)
        seconds = call_seconds(calls, places)
        waits = np.array([calls.started[place] - calls.ready[place] for place in places])
        busy = sum(end - begin for begin, end in zip(calls.started, calls.ended, strict=True))
        found.append(
            SimulatedStage(
                stage=calls.stage,
                calls=len(places),
                p50_seconds=float(np.median(seconds)) if len(seconds) else None,
                p99_seconds=float(np.percentile(seconds, 99)) if len(seconds) else None,
                wait_p99_seconds=float(np.percentile(waits, 99)) if len(waits) else None,
                busy_share=min(1.0, busy / run.seconds) if run.seconds > 0.0 else 0.0,
            )
        )
    return tuple(found)
