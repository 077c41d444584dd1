"""Where a frame's time went beyond the usual, from the sink back to its sensor."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.quantity import percent
from ridgeline.quantity import seconds as seconds_text
from ridgeline.realtime.blame.excess import Excess, call_excess
from ridgeline.realtime.blame.timeline import RunTimeline, StageCall
from ridgeline.realtime.blame.waits import queueing, wait_excess
from ridgeline.records.pipeline_shape import EdgeShape

_SAME_SECONDS = 1e-4
"""What comes so little after `ready` was there by then: two looks at one clock."""
_NOTABLE = 0.1
"""Beyond-usual times under this share of the deadline do not make a frame late by themselves."""


@dataclass(slots=True)
class FramePath:
    """The way of one frame that took longest, as usual times and what went beyond them."""

    causes: list[Excess] = field(default_factory=list)
    usual: dict[str, float] = field(default_factory=dict)
    """Stage → the seconds that its call usually takes."""
    usual_waits: dict[str, float] = field(default_factory=dict)


def path_of_call(timeline: RunTimeline, call: StageCall) -> FramePath:
    """The way that led to the end of one call."""
    path = FramePath()
    here: StageCall | None = call
    while here is not None:
        stage = timeline.stages[here.stage]
        path.usual[here.stage] = stage.usual_seconds
        path.causes += call_excess(timeline, here)
        ready, started = float(stage.ready[here.index]), float(stage.started[here.index])
        frame = stage.frames[here.index]
        here = _wait_before(timeline, path, here.stage, frame, ready, started, here.index)
    return path


def path_to_loss(timeline: RunTimeline, stage: str, frame: int, at: float) -> FramePath:
    """The way of a frame that was given up at a stage before its call."""
    path = FramePath()
    call = _wait_before(timeline, path, stage, frame, at, at, None)
    if call is None:
        return path
    before = path_of_call(timeline, call)
    before.causes += path.causes
    before.usual_waits |= path.usual_waits
    return before


def guilty(path: FramePath, timeline: RunTimeline, deadline: float | None) -> Excess | None:
    """The cause that made a frame late; None: the path says nothing."""
    worst = max(path.causes, key=lambda cause: cause.seconds, default=None)
    usual = sum(path.usual.values()) + sum(path.usual_waits.values())
    if deadline is None or not path.usual:
        return worst
    mild = worst is None or worst.seconds < _NOTABLE * deadline
    if usual > deadline and (worst is None or worst.seconds < usual - deadline or mild):
        return _always_late(path, timeline, usual, deadline)
    if mild and usual > (1.0 - 2 * _NOTABLE) * deadline:
        return _always_late(path, timeline, usual, deadline)
    return worst


def _always_late(path: FramePath, timeline: RunTimeline, usual: float, deadline: float) -> Excess:
    waits = sum(path.usual_waits.values())
    if waits > usual / 2:
        return queueing(timeline, max(path.usual_waits, key=lambda at: path.usual_waits[at]), waits)
    slowest = max(path.usual, key=lambda at: path.usual[at])
    share = path.usual[slowest] / usual
    return Excess(
        place=slowest,
        kind="too slow",
        seconds=path.usual[slowest],
        evidence=f"nothing unusual: the way usually takes {seconds_text(usual)} of "
        f"{seconds_text(deadline)}, and {percent(share)} of it are {slowest}",
    )


def _wait_before(
    timeline: RunTimeline,
    path: FramePath,
    stage: str,
    frame: int,
    ready: float,
    started: float,
    at: int | None,
) -> StageCall | None:
    """Note the wait before a call, and return the call that it waited for last; None: a sensor."""
    arrived, source = _last_input(timeline, stage, frame, ready)
    path.usual_waits[stage] = timeline.stages[stage].usual_wait
    waited = wait_excess(timeline, stage, arrived, started, at)
    if waited:
        path.causes.append(waited)
    if isinstance(source, StageCall):
        return source
    is_first = timeline.graph.readers[source][0] == stage
    late = _late_arrival(timeline, source, arrived, at if is_first else None)
    if late:
        path.causes.append(late)
    return None


def _last_input(
    timeline: RunTimeline, stage: str, frame: int, ready: float
) -> tuple[float, StageCall | str]:
    """When a call's last input came, and the call or the sensor that it came from."""
    shape = timeline.shapes[stage]
    best: tuple[float, StageCall | str] | None = None
    for edge in shape.inputs:
        if edge.reuse:
            continue
        found = _input(timeline, stage, edge, frame, ready)
        if found and (best is None or found[0] > best[0]):
            best = found
    return best or (ready, timeline.graph.leads[stage])


def _input(
    timeline: RunTimeline, stage: str, edge: EdgeShape, frame: int, ready: float
) -> tuple[float, StageCall | str] | None:
    limit = ready + _SAME_SECONDS
    leads = timeline.graph.leads
    if edge.source in timeline.stages:
        other = timeline.stages[edge.source]
        at = other.at_frame(frame) if leads[edge.source] == leads[stage] else None
        if at is None or other.ended[at] > limit:
            at = other.last_ended(limit)
        return None if at is None else (float(other.ended[at]), StageCall(edge.source, at))
    arrivals = timeline.arrivals.get(edge.source)
    if arrivals is None:
        return None
    come = arrivals.arrived.get(frame) if edge.source == leads[stage] else None
    if come is None or come > limit:
        come = arrivals.last(limit)
    return None if come is None else (come, edge.source)


def _late_arrival(
    timeline: RunTimeline, sensor: str, arrived: float, at: int | None
) -> Excess | None:
    """A sensor's frame that came long after its stamp, unless the one thread had no time for it."""
    arrivals = timeline.arrivals[sensor]
    stamp = arrivals.stamp_of(arrived)
    late = arrived - stamp - arrivals.usual_late
    if late <= 0:
        return None
    if timeline.one_thread:
        lead = timeline.graph.readers[sensor][0]
        behind = wait_excess(timeline, lead, stamp, arrived, at)
        if behind and behind.kind not in ("not known", "queueing") and behind.seconds > late / 4:
            return behind
    return Excess(
        place=sensor,
        kind="sensor late",
        seconds=late,
        evidence=f"its frame came {seconds_text(arrived - stamp)} after its stamp, usually "
        f"{seconds_text(arrivals.usual_late)}",
    )
