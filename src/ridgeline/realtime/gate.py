"""Whether a run kept its limits: misses, the tail over the median, the mean, the single worst.

Two limits caught more in practice than a percentile: openpilot's gate on its driving model holds
the mean and the worst of a replay (`selfdrive/test/process_replay/model_replay.py`, 2024). A limit
is judged by what was found; where the frames are too few to prove it, the check says how many are
needed.

Constant stream is MLPerf Automotive's scenario (MLCommons, inference policies, v0.5): queries at a
fixed rate whatever the system does, a latency limit, and the 99.9th percentile as the metric. A
frame that was dropped or failed has no latency, and counts as one that never ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from ridgeline import quantity
from ridgeline.errors import InputError
from ridgeline.frames.outcomes import LOST, measured_fates, path_ages, sink_ages
from ridgeline.measure.statistics.metric import quantile_interval, samples_needed
from ridgeline.measure.statistics.shares import fewest_for_share
from ridgeline.realtime.run import RunSettings
from ridgeline.realtime.summary import sampled, sink_outcomes, stage_seconds, summarise_run
from ridgeline.records.pipeline_shape import PipelineShape
from ridgeline.records.realtime_report import (
    GateCheck,
    GateLimit,
    GateVerdict,
    RealtimeReport,
    SampledSeconds,
    SinkOutcome,
)
from ridgeline.records.realtime_run import RealtimeRun

CONSTANT_STREAM_FRAMES = 10_000
"""The fewest frames that carry a 99.9th percentile: ten of them lie above it."""
CONSTANT_STREAM_SHARE = 0.999
_NO_RESULT = "no result came out"
_UNPROVEN = "its interval reaches past the limit: not proven"
_NEVER_SECONDS = 1e12
"""The age of a frame that has no result, where times must be finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """What is asked of every sink; None: not asked."""

    max_miss: float | None = None
    """Share of frames that may be late, dropped or failed, from 0 to 1."""
    p99_over_p50: float | None = None
    worst_seconds: float | None = None
    mean_seconds: float | None = None
    constant_stream: bool = False
    """The 99.9th percentile against the deadline."""
    budgets: bool = False
    """P99 of every stage and path with a budget of its own against that."""

    def __post_init__(self) -> None:
        if self.max_miss is not None and not 0 <= self.max_miss < 1:
            raise InputError(f"--max-miss {self.max_miss:g}: give a share below 1, as 0.1%")
        if self.p99_over_p50 is not None and self.p99_over_p50 < 1:
            raise InputError(
                f"--p99-over-p50 {self.p99_over_p50:g}: no tail is below its median; give 1.2"
            )
        for name, value in (("worst", self.worst_seconds), ("mean", self.mean_seconds)):
            if value is not None and value <= 0:
                raise InputError(f"--{name} {value:g}: give a duration, as 33ms")

    @property
    def any(self) -> bool:
        """Whether there is anything to judge."""
        asked = (self.max_miss, self.p99_over_p50, self.worst_seconds, self.mean_seconds)
        return self.constant_stream or self.budgets or any(one is not None for one in asked)

    @property
    def usual_frames(self) -> int:
        """Frames of a run that nobody gave a length."""
        return CONSTANT_STREAM_FRAMES if self.constant_stream else RunSettings().frames

    def check_fits(self, shape: PipelineShape, frames: int) -> None:
        """Refuse, before anything runs, what no run of this pipeline could be judged by.

        Raises:
            InputError: There is no deadline to miss, or too few frames for the claim.
        """
        if self.max_miss is not None and shape.deadline_seconds is None:
            raise InputError("--max-miss needs a deadline to miss; give --deadline, as 33ms")
        if self.budgets and not (shape.paths or any(one.budget_seconds for one in shape.stages)):
            raise InputError(
                f"--budgets: {shape.name} declares none; give stage(…, budget=…) or path(…)"
            )
        if not self.constant_stream:
            return
        if shape.deadline_seconds is None:
            raise InputError("--constant-stream needs a latency limit; give --deadline, as 33ms")
        if frames < CONSTANT_STREAM_FRAMES:
            raise InputError(
                f"--frames {frames}: --constant-stream claims a 99.9th percentile, which takes"
                f" {CONSTANT_STREAM_FRAMES} frames or more"
            )
        for sensor in shape.sensors:
            if sensor.rate_hz is None:
                raise InputError(
                    f"--constant-stream sends frames at a fixed rate, and the sensor"
                    f" {sensor.name} has none; declare its rate"
                )


def judged_report(run: RealtimeRun, limits: GateLimits) -> RealtimeReport:
    """The tables of a run, and the verdict on it where a limit was given."""
    report = summarise_run(run)
    return msgspec.structs.replace(report, gate=judge_run(run, limits))


def judge_run(run: RealtimeRun, limits: GateLimits) -> GateVerdict | None:
    """The verdict on a run, every limit at every sink; None where no limit was given."""
    if not limits.any:
        return None
    checks = [check for sink in sink_outcomes(run) for check in _checks(run, sink, limits)]
    if limits.budgets:
        checks += _budgets(run)
    return GateVerdict(
        mode="constant-stream" if limits.constant_stream else "limits",
        passed=all(check.passed for check in checks),
        checks=checks,
    )


def _checks(run: RealtimeRun, sink: SinkOutcome, limits: GateLimits) -> list[GateCheck]:
    found: list[GateCheck] = []
    if limits.max_miss is not None:
        found.append(_misses(sink, limits.max_miss))
    if limits.p99_over_p50 is not None:
        found.append(_tail(sink, limits.p99_over_p50))
    if limits.worst_seconds is not None:
        worst = None if sink.age is None else sink.age.worst_seconds
        note = _NO_RESULT if worst is None else ""
        found.append(_judged("worst", sink.sink, limits.worst_seconds, worst, note))
    if limits.mean_seconds is not None:
        mean = None if sink.age is None else sink.age.mean_seconds
        note = _NO_RESULT if mean is None else ""
        found.append(_judged("mean", sink.sink, limits.mean_seconds, mean, note))
    if limits.constant_stream:
        found.append(_constant_stream(run, sink))
    return found


def _judged(
    limit: GateLimit,
    place: str,
    allowed: float,
    found: float | None,
    note: str = "",
    *,
    bounds: tuple[float | None, float | None] = (None, None),
) -> GateCheck:
    """The check of a limit that what was found may not exceed; None: nothing was."""
    low, high = bounds
    passed = found is not None and found <= allowed
    return GateCheck(limit=limit, sink=place, allowed=allowed, found=found, low=low, high=high,
                     passed=passed, note=note)  # fmt: skip


def _misses(sink: SinkOutcome, allowed: float) -> GateCheck:
    share, high = sink.miss_share, sink.miss_share_high
    note = ""
    if share is None or high is None:
        note = "no frame has a fate"
    elif share <= allowed < high:
        needed = f"; {fewest_for_share(allowed):,} without a miss would" if allowed > 0 else ""
        note = (
            f"{sink.frames:,} frames do not prove it: up to {quantity.percent(high, 2)} fits"
            f" them{needed}"
        )
    bounds = (sink.miss_share_low, high)
    return _judged("max-miss", sink.sink, allowed, share, note, bounds=bounds)


def _tail(sink: SinkOutcome, allowed: float) -> GateCheck:
    found = sink.p99_over_p50
    low, high = (None, None) if sink.age is None else _ratio_bounds(sink.age)
    note = _NO_RESULT if found is None else ""
    if found is not None and high is None:
        note = (
            f"{sink.frames:,} frames do not bound a 99th percentile from above; it takes"
            f" {samples_needed(0.99)} that are independent"
        )
    return _judged("p99-over-p50", sink.sink, allowed, found, note, bounds=(low, high))


def _ratio_bounds(age: SampledSeconds) -> tuple[float | None, float | None]:
    """P99 over P50 from the far ends of both intervals: wider than 95 %, never narrower."""
    bounds = (age.p99.low_seconds, age.p50.high_seconds, age.p99.high_seconds, age.p50.low_seconds)
    low_99, high_50, high_99, low_50 = bounds
    low = low_99 / high_50 if low_99 is not None and high_50 is not None else None
    return low, high_99 / low_50 if high_99 is not None and low_50 is not None else None


def _constant_stream(run: RealtimeRun, sink: SinkOutcome) -> GateCheck:
    fates = measured_fates(run, sink.sink)
    lost = sum(kind in LOST for kind in fates.kinds)
    ages = np.concatenate([sink_ages(run, sink.sink), np.full(lost, _NEVER_SECONDS)])
    allowed = run.shape.deadline_seconds or 0.0
    if len(ages) < CONSTANT_STREAM_FRAMES:
        note = (
            f"{len(ages):,} frames carry no 99.9th percentile; it takes {CONSTANT_STREAM_FRAMES:,}"
        )
        return _judged("p99.9", sink.sink, allowed, None, note)
    value = float(np.quantile(ages, CONSTANT_STREAM_SHARE, method="higher"))
    _, low, high = quantile_interval(ages.tolist(), CONSTANT_STREAM_SHARE)
    found, low, high = _finite(value), _finite(low), _finite(high)
    note = f"{lost:,} frames have no result and count as unbounded" if lost else ""
    if found is not None and found <= allowed and (high is None or high > allowed):
        note = "; ".join(filter(None, [note, _UNPROVEN]))
    return _judged("p99.9", sink.sink, allowed, found, note, bounds=(low, high))


def _budgets(run: RealtimeRun) -> list[GateCheck]:
    """Every declared budget, of a stage's own time and of the age at the end of a path."""
    found = [
        _budget(
            "stage-budget", stage.name, stage.budget_seconds, sampled(stage_seconds(run, stage))
        )
        for stage in run.shape.stages
        if stage.budget_seconds is not None
    ]
    return found + [
        _budget("path-budget", f"{one.sensor} -> {one.stage}", one.budget_seconds,
                sampled(path_ages(run, one.sensor, one.stage)))
        for one in run.shape.paths
    ]  # fmt: skip


def _budget(
    limit: Literal["stage-budget", "path-budget"],
    place: str,
    allowed: float,
    times: SampledSeconds | None,
) -> GateCheck:
    if times is None:
        return _judged(limit, place, allowed, None, "nothing came out")
    p99 = times.p99
    proven = p99.high_seconds is not None and p99.high_seconds <= allowed
    note = "" if proven or p99.seconds > allowed else _UNPROVEN
    bounds = (p99.low_seconds, p99.high_seconds)
    return _judged(limit, place, allowed, p99.seconds, note, bounds=bounds)


def _finite(seconds: float | None) -> float | None:
    """A time that frames with a result can have."""
    return None if seconds is None or seconds > _NEVER_SECONDS / 2 else seconds
