"""A run laid out so that blame can ask it: what each stage usually takes, who ran in a window."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ridgeline.frames.graph import StageGraph
from ridgeline.records.pipeline_shape import StageShape
from ridgeline.records.realtime_run import (
    Collection,
    FrameFates,
    Interference,
    RealtimeRun,
    StageCalls,
)

Column = npt.NDArray[np.float64]

USUAL_QUANTILE = 0.25
"""What is usual is the lower quartile: half of the frames may be unusual and it still holds."""


@dataclass(frozen=True, slots=True)
class StageCall:
    """One call, as its stage and its place in that stage's columns."""

    stage: str
    index: int


class StageTimeline:
    """The calls of one stage as arrays, with what is usual for them.

    Args:
        calls: The stage's columns.
        warmup: Leading calls that say nothing of what is usual.
    """

    def __init__(self, calls: StageCalls, warmup: int) -> None:
        self.name = calls.stage
        self.frames = calls.frames
        self.ready = np.asarray(calls.ready, np.float64)
        self.started = np.asarray(calls.started, np.float64)
        self.ended = np.asarray(calls.ended, np.float64)
        self.seconds = self.ended - self.started
        self.cpu = _column(calls.cpu_seconds)
        self.gpu = _column(calls.gpu_seconds)
        self.core_wait = _column(calls.core_wait_seconds)
        self.wake_wait = _column(calls.wake_wait_seconds)
        self.collecting = _column(calls.collecting_seconds)
        self.page_faults = _column(calls.page_faults)
        self.major_faults = _column(calls.major_faults)
        self.switches = _column(calls.switches)
        self.slowdowns = _column(calls.slowdowns)
        self.cores = calls.cores
        self._at_frame: dict[int, int] = {frame: at for at, frame in enumerate(calls.frames)}
        ran = np.array([mode == "run" for mode in calls.modes], bool)
        later = ran & (np.arange(len(ran)) >= warmup)
        self._counted = later if later.any() else ran
        taken_away = self.taken_away()
        self.usual_seconds = self._usual(self.seconds - taken_away)
        self.usual_wait = self._usual(self.started - self.ready)
        self.usual_cpu = self._usual(self.own_cpu())
        self.usual_gpu = self._usual(self.gpu)
        self.usual_faults = self._usual(self.page_faults)
        self.usual_blocked = self._usual(self.blocked())
        self.busy_seconds = float(self.seconds.sum())

    def taken_away(self) -> Column:
        """Seconds of each call without a core or in a collection, when its code could not go on."""
        away = np.zeros_like(self.seconds)
        for column in (self.core_wait, self.collecting):
            if column is not None:
                away = away + column
        return away

    def own_cpu(self) -> Column | None:
        """CPU seconds of each call without garbage collections."""
        if self.cpu is None or self.collecting is None:
            return self.cpu
        return np.maximum(self.cpu - self.collecting, 0.0)

    def blocked(self) -> Column | None:
        """Seconds of each call in which its thread neither ran nor could have run."""
        if self.cpu is None or self.core_wait is None:
            return None
        return np.maximum(self.seconds - self.cpu - self.core_wait, 0.0)

    def at_frame(self, frame: int) -> int | None:
        """The index of a frame's call."""
        return self._at_frame.get(frame)

    def ended_at(self, at: float) -> int | None:
        """The index of the call that ended within a millisecond of a time, the nearest."""
        after = bisect_left(self.ended, at)
        near = [index for index in (after - 1, after) if 0 <= index < len(self.ended)]
        best = min(near, key=lambda index: abs(self.ended[index] - at), default=None)
        return best if best is not None and abs(self.ended[best] - at) < 1e-3 else None

    def last_ended(self, at: float) -> int | None:
        """The index of the last call that had ended by a time."""
        index = bisect_right(self.ended, at) - 1
        return index if index >= 0 else None

    def overlapping(self, start: float, end: float) -> range:
        """The calls that ran at some time in a window."""
        return range(bisect_right(self.ended, start), bisect_left(self.started, end))

    def busy_between(self, start: float, end: float) -> float:
        """Seconds of a window in which the stage was in a call."""
        return sum(
            _overlap(self.started[index], self.ended[index], start, end)
            for index in self.overlapping(start, end)
        )

    def _usual(self, column: Column | None) -> float:
        if column is None or not self._counted.any():
            return 0.0
        return float(np.quantile(column[self._counted], USUAL_QUANTILE))


class RunTimeline:
    """A whole run, ready to be asked."""

    def __init__(self, run: RealtimeRun) -> None:
        self.run = run
        self.graph = StageGraph(run.shape)
        self.stages = {calls.stage: StageTimeline(calls, run.warmup_frames) for calls in run.calls}
        self.shapes: dict[str, StageShape] = {stage.name: stage for stage in run.shape.stages}
        self.arrivals = {fates.sensor: _Arrivals(fates, run.warmup_frames) for fates in run.fates}
        self.one_thread = run.executor == "inline"
        self.one_interpreter = run.executor in ("inline", "threads")
        self.real_time = any(each.name == "fifo" and each.granted for each in run.steady)
        self._collection_ends = [each.ended for each in run.collections]
        self._interference = sorted(run.interference, key=lambda each: each.ended)
        self._interference_ends = [each.ended for each in self._interference]
        self._wait_times: defaultdict[str, list[float]] = defaultdict(list)
        self._wait_states: defaultdict[str, list[str]] = defaultdict(list)
        self._deaths = {name: _deaths(run.fates, name) for name in self.stages}
        for sample in run.waits:
            self._wait_times[sample.stage].append(sample.at_seconds)
            self._wait_states[sample.stage].append(sample.state)

    def workers_of(self, stage: str) -> tuple[StageTimeline, ...]:
        """The stages whose calls keep this one's worker busy."""
        return tuple(self.stages.values()) if self.one_thread else (self.stages[stage],)

    def downstream(self, stage: str) -> list[str]:
        """A stage and all after it, the nearest first."""
        found = [stage]
        for name in found:
            found += [each for each in self.graph.readers.get(name, ()) if each not in found]
        return found

    def wait_states(self, stage: str, start: float, end: float) -> list[str]:
        """What a stage's thread was seen doing in a window, computing left out."""
        times = self._wait_times[stage]
        seen = self._wait_states[stage][bisect_left(times, start) : bisect_right(times, end)]
        return [state for state in seen if state != "runs"]

    def collections(self, start: float, end: float) -> list[Collection]:
        """Garbage collections that overlap a window."""
        first = bisect_left(self._collection_ends, start)
        return [each for each in self.run.collections[first:] if each.started < end]

    def interference(self, start: float, end: float) -> list[Interference]:
        """What else used the machine in a window."""
        first = bisect_left(self._interference_ends, start)
        return [each for each in self._interference[first:] if each.started < end]

    def rivals(self, stage: str, start: float, end: float, core: int | None) -> list[Rival]:
        """Who used a processor in a window while this stage wanted one, the likeliest first.

        Those seen on the same core count three times: with two cores there is always somebody
        busy on the other.
        """
        rivals: dict[tuple[str, str], float] = defaultdict(float)
        for each in self.interference(start, end):
            length = max(each.ended - each.started, 1e-9)
            part = _overlap(each.started, each.ended, start, end) / length
            weight = 3.0 if core is not None and each.core == core else 1.0
            rivals[each.process, each.kind] += each.cpu_seconds * part * weight
        for other in self.stages.values():
            if other.name == stage or other.cpu is None:
                continue
            for index in other.overlapping(start, end):
                length = max(other.seconds[index], 1e-9)
                part = _overlap(other.started[index], other.ended[index], start, end) / length
                same = bool(other.cores) and other.cores[index] == core
                rivals[f"stage {other.name}", "stage"] += (
                    float(other.cpu[index]) * part * (3.0 if same else 1.0)
                )
        ranked = sorted(rivals.items(), key=lambda item: -item[1])
        return [Rival(name, kind, weight) for (name, kind), weight in ranked if weight > 0]

    def beside(self, stage: str, start: float, end: float) -> tuple[str, float]:
        """The other stage that was in a call for most of a window, and for how long."""
        times = {
            other.name: other.busy_between(start, end)
            for other in self.stages.values()
            if other.name != stage
        }
        best = max(times, key=lambda name: times[name], default="")
        return (best, times[best]) if best and times[best] > 0 else ("", 0.0)

    def deaths(self, stage: str) -> list[float]:
        """When a stage's process died."""
        return self._deaths[stage]

    def bottleneck(self, stage: str) -> str:
        """Who sets the pace where frames wait for a stage: it, or what it waits for itself."""
        if self.one_thread:
            return max(self.stages, key=lambda name: self.stages[name].busy_seconds)
        return max(self.downstream(stage), key=lambda name: self.stages[name].busy_seconds)


@dataclass(frozen=True, slots=True)
class Rival:
    """Somebody who used a processor beside a stage."""

    name: str
    kind: str
    """`stage`, or the kind of interference."""
    weight: float


class _Arrivals:
    """When a sensor's frames were taken and when they came."""

    def __init__(self, fates: FrameFates, warmup: int) -> None:
        self.stamps = dict(zip(fates.frames, fates.stamps, strict=True))
        self.arrived = dict(zip(fates.frames, fates.arrived, strict=True))
        came = sorted(zip(fates.arrived, fates.stamps, strict=True))
        self.times = [at for at, _ in came]
        self._stamps_by_time = [stamp for _, stamp in came]
        late = [come - stamp for come, stamp in zip(fates.arrived, fates.stamps, strict=True)]
        later = late[warmup:] or late
        self.usual_late = float(np.quantile(later, USUAL_QUANTILE)) if later else 0.0

    def stamp_of(self, arrived: float) -> float:
        """The stamp of the frame that came at a time, or last before it."""
        index = bisect_right(self.times, arrived) - 1
        return self._stamps_by_time[index] if index >= 0 else arrived

    def last(self, at: float) -> float | None:
        """The last arrival by a time."""
        index = bisect_right(self.times, at) - 1
        return self.times[index] if index >= 0 else None


def _deaths(tables: list[FrameFates], stage: str) -> list[float]:
    return sorted(
        {
            at
            for fates in tables
            for at, place, reason in zip(fates.ended, fates.places, fates.reasons, strict=True)
            if at is not None and place == stage and "died" in reason
        }
    )


def _column(values: list[float] | list[int]) -> Column | None:
    return np.asarray(values, np.float64) if values else None


def _overlap(start: float, end: float, other_start: float, other_end: float) -> float:
    return float(max(0.0, min(end, other_end) - max(start, other_start)))
