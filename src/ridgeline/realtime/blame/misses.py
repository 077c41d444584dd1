"""The cause of each miss of a run.

A frame that never came out is explained by its fate, and by what the stage that lost it was doing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from statistics import median

import msgspec

from ridgeline.quantity import seconds as seconds_text
from ridgeline.realtime.blame.excess import Excess
from ridgeline.realtime.blame.late import FramePath, guilty, path_of_call, path_to_loss
from ridgeline.realtime.blame.timeline import RunTimeline, StageCall
from ridgeline.realtime.blame.waits import queueing, wait_excess
from ridgeline.records.realtime_blame import CauseCount, CauseShare, MissCause, MissKind
from ridgeline.records.realtime_run import FrameFates, RealtimeRun, SensorFault

_ABSENT = ("gap", "stopped", "raised")
"""Faults in which frames that were due did not come at all."""
_REFUSED = ("repeated id", "future stamp", "stale stamp")
_NAMED = 4


def blame(run: RealtimeRun, deadline_seconds: float | None = None) -> list[MissCause]:
    """Name the cause of every frame that was late, dropped or failed.

    Frames that a sensor owed and never sent are among them, with the fate `absent`.

    Args:
        run: With whatever was observed beside it; warm-up frames are left out.
        deadline_seconds: Judges anew which delivered frames were late; None: as the run says.
    """
    timeline = RunTimeline(run)
    deadline = run.shape.deadline_seconds if deadline_seconds is None else deadline_seconds
    causes = [
        cause
        for fates in run.fates
        for cause in _misses(timeline, fates, deadline_seconds, deadline)
    ]
    causes += _absent_frames(timeline)
    return sorted(causes, key=lambda cause: cause.at_seconds)


def _misses(
    timeline: RunTimeline, fates: FrameFates, again: float | None, deadline: float | None
) -> Iterator[MissCause]:
    for at in range(timeline.run.warmup_frames, len(fates.frames)):
        ended, kind = fates.ended[at], fates.kinds[at]
        if kind == "unfinished" or ended is None:
            continue
        if kind in ("dropped", "failed"):
            cause = loss_cause(
                timeline, fates.sensor, fates.frames[at], ended, fates.places[at], fates.reasons[at]
            )
            yield _miss(fates, at, kind, ended, None, cause, [])
            continue
        late = kind == "late" if again is None else ended - fates.stamps[at] > again
        if late:
            over = None if deadline is None else ended - fates.stamps[at] - deadline
            path = _path(timeline, fates, at, ended)
            cause = guilty(path, timeline, deadline) or _unknown(fates, at)
            yield _miss(fates, at, "late", ended, over, cause, path.causes)


def _path(timeline: RunTimeline, fates: FrameFates, at: int, ended: float) -> FramePath:
    sink = timeline.stages[fates.sink]
    index = None
    if timeline.graph.leads[fates.sink] == fates.sensor:
        index = sink.at_frame(fates.frames[at])
    if index is None:
        index = sink.ended_at(ended)
    return FramePath() if index is None else path_of_call(timeline, StageCall(fates.sink, index))


def _unknown(fates: FrameFates, at: int) -> Excess:
    return Excess(
        place=fates.places[at] or fates.sink,
        kind="not known",
        seconds=0.0,
        evidence=fates.reasons[at] or "nothing on its way took longer than usual",
    )


def _miss(
    fates: FrameFates,
    at: int,
    fate: str,
    ended: float,
    over: float | None,
    cause: Excess,
    all_causes: list[Excess],
) -> MissCause:
    shares = _shares(all_causes)
    guilty_key = (cause.place, cause.kind)
    total = sum(shares.values())
    seconds = shares.get(guilty_key, cause.seconds)
    others = [
        CauseShare(place=place, kind=kind, seconds=spent)  # type: ignore[arg-type]
        for (place, kind), spent in sorted(shares.items(), key=lambda item: -item[1])
        if (place, kind) != guilty_key
    ]
    behind = cause.frame if cause.frame != fates.frames[at] else None
    waited = "" if behind is None else f"behind frame {behind}: "
    return MissCause(
        sensor=fates.sensor,
        sink=fates.sink,
        frame=fates.frames[at],
        fate=fate,
        at_seconds=ended,
        over_seconds=over,
        place=cause.place,
        kind=cause.kind,
        co_runner=cause.co_runner,
        excess_seconds=cause.seconds,
        confidence=min(1.0, seconds / total) if guilty_key in shares and total > 0 else 1.0,
        behind=behind,
        evidence=waited + cause.evidence,
        others=tuple(others[:_NAMED]),
    )


def _shares(causes: list[Excess]) -> dict[tuple[str, str], float]:
    """Place and kind → seconds; one slow call delays a frame once, however often it shows."""
    shares: dict[tuple[str, str], float] = {}
    for cause in causes:
        key = (cause.place, cause.kind)
        shares[key] = max(shares.get(key, 0.0), cause.seconds)
    return shares


def _is_echo(fault: SensorFault, before: SensorFault | None) -> bool:
    """Whether a gap is only the hole that a refused frame has left."""
    if before is None or before.kind not in _REFUSED:
        return False
    return fault.kind == "gap" and fault.frame - before.frame <= 2


def _absent_frames(timeline: RunTimeline) -> Iterator[MissCause]:
    """Frames that a sensor owed: nothing else would tell of them."""
    sinks = timeline.graph.reached
    before: dict[str, SensorFault] = {}
    for fault in timeline.run.sensor_faults:
        refused = before.get(fault.sensor)
        before[fault.sensor] = fault
        if fault.kind not in _ABSENT or _is_echo(fault, refused):
            continue
        cause = fault_of(fault)
        for sink in sinks.get(fault.sensor, ()):
            yield MissCause(
                sensor=fault.sensor,
                sink=sink,
                frame=fault.frame,
                fate="absent",
                at_seconds=fault.at_seconds,
                over_seconds=None,
                place=cause.place,
                kind=cause.kind,
                confidence=1.0,
                evidence=cause.evidence,
            )


SENSOR_KINDS: dict[str, MissKind] = {
    "gap": "sensor gap",
    "repeated id": "repeated id",
    "future stamp": "bad stamp",
    "stale stamp": "bad stamp",
    "stopped": "sensor stopped",
    "late": "sensor late",
    "raised": "sensor raised",
}
"""The fault of a sensor → the kind of miss that it makes."""
_FAULT_SECONDS = 0.5
"""A join that fails so soon after a fault of the sensor that it waits for fails for it."""
_LONG_BEFORE_SECONDS = 0.001


def loss_cause(
    timeline: RunTimeline, sensor: str, frame: int, at: float, place: str, reason: str
) -> Excess:
    """The cause of a frame's end at a place, for the reason that its fate gives."""
    if "died" in reason:
        return Excess(place=place, kind="died", seconds=0.0, evidence=reason)
    if reason.startswith("raised"):
        return Excess(place=place, kind="raised", seconds=0.0, evidence=reason)
    if place in timeline.arrivals:
        return _refused(timeline, sensor, frame, reason)
    source, _, reader = place.partition(" -> ")
    if reason == "no partner":
        return _no_partner(timeline, source, reader, at)
    if reason in ("oldest", "full", "superseded"):
        return _no_room(timeline, source, reader, at, reason)
    return _too_late(timeline, place, frame, at, reason)


def fault_of(fault: SensorFault) -> Excess:
    """A sensor's fault as the cause of a miss."""
    return Excess(
        place=fault.sensor,
        kind=SENSOR_KINDS[fault.kind],
        seconds=0.0,
        evidence=fault.kind + (f": {fault.detail}" * bool(fault.detail)),
    )


def _refused(timeline: RunTimeline, sensor: str, frame: int, reason: str) -> Excess:
    for fault in timeline.run.sensor_faults:
        if fault.sensor == sensor and fault.frame == frame and fault.kind in SENSOR_KINDS:
            return fault_of(fault)
    return Excess(place=sensor, kind="bad stamp", seconds=0.0, evidence=reason)


def _no_partner(timeline: RunTimeline, source: str, reader: str, at: float) -> Excess:
    """The input that was missing, and what was wrong with the sensor behind it."""
    missing = [edge.source for edge in timeline.shapes[reader].inputs if edge.source != source]
    sensors = [timeline.graph.leads.get(each, each) for each in missing]
    faults = [
        fault
        for fault in timeline.run.sensor_faults
        if fault.sensor in sensors
        and (fault.kind == "stopped" or abs(at - fault.at_seconds) < _FAULT_SECONDS)
        and fault.at_seconds <= at + _FAULT_SECONDS
    ]
    if faults:
        return fault_of(min(faults, key=lambda fault: abs(at - fault.at_seconds)))
    named = ", ".join(missing)
    last = [
        arrivals.times[-1]
        for name in sensors
        if (arrivals := timeline.arrivals.get(name)) is not None and arrivals.times
    ]
    silent = at - max(last, default=at)
    said = f"; {named} sent its last {seconds_text(silent)} before" if silent > 0 else ""
    return Excess(
        place=f"{source} -> {reader}",
        kind="no partner",
        seconds=0.0,
        co_runner=named,
        evidence=f"no frame of {named} within the tolerance of {reader}{said}",
    )


def _no_room(timeline: RunTimeline, source: str, reader: str, at: float, reason: str) -> Excess:
    """What kept the reader of a full edge, or that it is too slow for what comes."""
    stage = timeline.stages[reader]
    last = stage.last_ended(at)
    since = float(stage.ended[last]) if last is not None else 0.0
    running = stage.overlapping(at, at)
    start = min([since, *(float(stage.started[index]) for index in running)])
    cause = wait_excess(timeline, reader, min(start, at - _LONG_BEFORE_SECONDS), at)
    if cause and cause.kind not in ("not known", "queueing"):
        return cause
    slow = queueing(timeline, reader, max(at - start, 0.0))
    said = f"{source} -> {reader} was full ({reason}): {slow.place} cannot keep up with what comes"
    return Excess(place=slow.place, kind="queueing", seconds=slow.seconds, evidence=said)


def _too_late(timeline: RunTimeline, stage: str, frame: int, at: float, reason: str) -> Excess:
    if stage not in timeline.stages:
        return Excess(place=stage, kind="not known", seconds=0.0, evidence=reason)
    path = path_to_loss(timeline, stage, frame, at)
    cause = guilty(path, timeline, timeline.run.shape.deadline_seconds)
    if cause is not None:
        return cause
    return Excess(
        place=stage,
        kind="too slow",
        seconds=timeline.stages[stage].usual_seconds,
        evidence=f"given up before {stage}, which would not have ended in time",
    )


_FIRST_FRAMES = 5


def count_causes(causes: Sequence[MissCause]) -> list[CauseCount]:
    """The causes of a run, those that cost most frames first."""
    groups: defaultdict[tuple[str, str], list[MissCause]] = defaultdict(list)
    for cause in causes:
        groups[cause.place, cause.kind].append(cause)
    counts = [_count(group, len(causes)) for group in groups.values()]
    return sorted(counts, key=lambda count: (-count.misses, -count.worst_excess_seconds))


def _count(group: list[MissCause], misses: int) -> CauseCount:
    worst = max(group, key=lambda cause: cause.excess_seconds)
    beside = Counter(cause.co_runner for cause in group if cause.co_runner)
    co_runner = beside.most_common(1)[0][0] if beside else ""
    return CauseCount(
        place=worst.place,
        kind=worst.kind,
        co_runner=co_runner,
        misses=len(group),
        share=len(group) / misses,
        median_excess_seconds=median(cause.excess_seconds for cause in group),
        worst_excess_seconds=worst.excess_seconds,
        frames=tuple(cause.frame for cause in group[:_FIRST_FRAMES]),
        evidence=worst.evidence,
        cure=_cures()[worst.kind].format(
            place=worst.place, co_runner=co_runner or "what runs beside it"
        ),
    )


@cache
def _cures() -> dict[str, str]:
    text = resources.files("ridgeline.realtime.blame").joinpath("cures.toml").read_text()
    return msgspec.toml.decode(text, type=dict[str, str])
