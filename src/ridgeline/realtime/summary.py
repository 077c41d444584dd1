"""A run as an answer: the columns of its calls and fates become tables with intervals.

Percentiles carry the interval of order statistics, with frames that are slow together counted as
fewer (`measure/statistics/metric.py`): slow frames come in clusters, and a cluster is one event.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ridgeline.frames.outcomes import (
    LOST,
    RESULTS,
    Array,
    call_seconds,
    leading_sensor,
    measured_calls,
    measured_fates,
    path_ages,
    sensors_behind,
    sink_ages,
    stage_of,
)
from ridgeline.measure.statistics.metric import quantile_interval
from ridgeline.measure.statistics.shares import wilson_interval
from ridgeline.realtime.blame import blame, count_causes
from ridgeline.records.calls import Quantile
from ridgeline.records.pipeline_shape import PipelineShape, StageShape
from ridgeline.records.realtime_report import (
    FrameLoss,
    PathAges,
    RealtimeReport,
    SampledSeconds,
    SinkOutcome,
    StageLatency,
)
from ridgeline.records.realtime_run import FrameFates, RealtimeRun, StageCalls

SHORTEST_SECONDS = 1e-9
"""What a clock that saw no time pass is taken for: percentiles are of logarithms."""


def summarise_run(run: RealtimeRun) -> RealtimeReport:
    """Tables of a run without its warm-up, with the cause of every miss."""
    misses = [
        one for one in blame(run) if one.sensor == leading_sensor(run.shape, one.sink)
    ]  # what another sensor's frames missed, the leading one's did too, or it is no loss
    return RealtimeReport(
        pipeline=run.shape.name,
        executor=run.executor,
        shape=run.shape,
        deadline_seconds=run.shape.deadline_seconds,
        seconds=run.seconds,
        stages=[_stage(run, calls) for calls in run.calls],
        paths=[_path(run, *ends) for ends in _paths(run.shape)],
        sinks=sink_outcomes(run),
        losses=[loss for sink in run.shape.sinks for loss in _losses(measured_fates(run, sink))],
        causes=count_causes(misses),
        misses=misses,
        sensor_faults=run.sensor_faults,
        steady=run.steady,
        notes=run.notes,
    )


def sampled(seconds: Sequence[float] | Array) -> SampledSeconds | None:
    """Mean, percentiles and the worst of some times; None where there are none.

    >>> found = sampled([0.010] * 99 + [0.030])
    >>> round(found.p50.seconds, 6), found.worst_seconds, found.p99.high_seconds
    (0.01, 0.03, None)
    """
    if len(seconds) == 0:
        return None
    times = np.maximum(np.asarray(seconds, dtype=np.float64), SHORTEST_SECONDS)
    return SampledSeconds(
        count=len(times),
        mean_seconds=float(times.mean()),
        p50=_quantile(times, 0.5),
        p99=_quantile(times, 0.99),
        worst_seconds=float(times.max()),
    )


def _quantile(times: Array, share: float) -> Quantile:
    value, low, high = quantile_interval(times.tolist(), share)
    return Quantile(seconds=value, low_seconds=low, high_seconds=high)


# -- stages ----------------------------------------------------------------------------------------


def stage_seconds(run: RealtimeRun, stage: StageShape) -> Array:
    """Seconds of a stage's own code in the calls after the warm-up."""
    calls = next(one for one in run.calls if one.stage == stage.name)
    return call_seconds(calls, measured_calls(run, calls))


def _stage(run: RealtimeRun, calls: StageCalls) -> StageLatency:
    stage = stage_of(run.shape, calls.stage)
    places = measured_calls(run, calls)
    seconds = call_seconds(calls, places)
    times = sampled(seconds)
    waits = [calls.started[place] - calls.ready[place] for place in places]
    limit = stage.budget_seconds or run.shape.deadline_seconds
    modes = Counter(calls.modes[place] for place in places)
    tight = run.tight_loop.get(calls.stage)
    tight_p50 = statistics.median(tight) if tight else None
    return StageLatency(
        stage=calls.stage,
        seconds=times,
        wait_p99_seconds=float(np.quantile(waits, 0.99)) if waits else None,
        budget_seconds=stage.budget_seconds,
        share=times.p99.seconds / limit if times is not None and limit else None,
        over_budget=int((seconds > stage.budget_seconds).sum()) if stage.budget_seconds else 0,
        degraded=modes["degrade"],
        held=modes["hold"],
        skipped=modes["skip"],
        gpu_p50_seconds=_median_at(calls.gpu_seconds, places),
        enqueue_p50_seconds=_median_at(calls.enqueue_seconds, places),
        tight_p50_seconds=tight_p50,
        flattery=times.p50.seconds / tight_p50 if times is not None and tight_p50 else None,
    )


def _median_at(column: Sequence[float], places: Sequence[int]) -> float | None:
    """The median of a column that may be empty."""
    return statistics.median(column[place] for place in places) if column and places else None


# -- paths and sinks -------------------------------------------------------------------------------


def _paths(shape: PipelineShape) -> list[tuple[str, str, float | None]]:
    """Sensor, stage and budget: every sensor to every sink, then what was declared beside."""
    declared = {(one.sensor, one.stage): one.budget_seconds for one in shape.paths}
    found: list[tuple[str, str, float | None]] = []
    for sink in shape.sinks:
        fresh = sensors_behind(shape, sink, reused=False)
        for sensor in sensors_behind(shape, sink):
            usual = shape.deadline_seconds if sensor in fresh else None
            found.append((sensor, sink, declared.pop((sensor, sink), usual)))
    return found + [(sensor, stage, budget) for (sensor, stage), budget in declared.items()]


def _path(run: RealtimeRun, sensor: str, stage: str, budget: float | None) -> PathAges:
    ages = path_ages(run, sensor, stage)
    return PathAges(
        sensor=sensor,
        stage=stage,
        age=sampled(ages),
        budget_seconds=budget,
        over_budget=0 if budget is None else int((ages > budget).sum()),
    )


def sink_outcomes(run: RealtimeRun) -> list[SinkOutcome]:
    """What became of the frames at every sink, without the warm-up."""
    return [_sink(run, sink) for sink in run.shape.sinks]


def _sink(run: RealtimeRun, sink: str) -> SinkOutcome:
    fates = measured_fates(run, sink)
    kinds = Counter(fates.kinds)
    judged = len(fates.kinds) - kinds["unfinished"]
    missed = kinds["late"] + kinds["dropped"] + kinds["failed"]
    low, high = wilson_interval(missed, judged) if judged else (None, None)
    age = sampled(sink_ages(run, sink))
    return SinkOutcome(
        sink=sink,
        sensor=fates.sensor,
        frames=judged,
        delivered=kinds["delivered"],
        late=kinds["late"],
        dropped=kinds["dropped"],
        failed=kinds["failed"],
        unfinished=kinds["unfinished"],
        miss_share=missed / judged if judged else None,
        miss_share_low=low,
        miss_share_high=high,
        age=age,
        p99_over_p50=None if age is None else age.p99.seconds / age.p50.seconds,
        results_per_second=_rate(fates),
    )


def _rate(fates: FrameFates) -> float | None:
    """Results per second, from the first to the last of them."""
    out = [
        ended
        for ended, kind in zip(fates.ended, fates.kinds, strict=True)
        if kind in RESULTS and ended is not None
    ]
    return (len(out) - 1) / (out[-1] - out[0]) if len(out) > 1 and out[-1] > out[0] else None


def _losses(fates: FrameFates) -> list[FrameLoss]:
    """Frames without a result, counted by place and reason, the most frequent first."""
    counted: Counter[tuple[str, str, str]] = Counter()
    first: dict[tuple[str, str, str], int] = {}
    for frame, kind, place, reason in zip(
        fates.frames, fates.kinds, fates.places, fates.reasons, strict=True
    ):
        if kind in LOST:
            counted[kind, place, reason] += 1
            first.setdefault((kind, place, reason), frame)
    return [
        FrameLoss(
            sensor=fates.sensor,
            sink=fates.sink,
            kind="dropped" if kind == "dropped" else "failed",
            place=place,
            reason=reason,
            frames=frames,
            first_frame=first[kind, place, reason],
        )
        for (kind, place, reason), frames in counted.most_common()
    ]
