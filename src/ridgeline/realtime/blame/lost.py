"""Why a frame never came out: what its fate says, and what the stage that lost it was doing."""

from __future__ import annotations

from ridgeline.quantity import seconds as seconds_text
from ridgeline.realtime.blame.excess import Excess
from ridgeline.realtime.blame.late import guilty, path_to_loss
from ridgeline.realtime.blame.timeline import RunTimeline
from ridgeline.realtime.blame.waits import queueing, wait_excess
from ridgeline.records.realtime_blame import MissKind
from ridgeline.records.realtime_run import SensorFault

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
