"""The cause of each miss of a run."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.realtime.blame.excess import Excess
from ridgeline.realtime.blame.late import FramePath, guilty, path_of_call
from ridgeline.realtime.blame.lost import fault_of, loss_cause
from ridgeline.realtime.blame.timeline import RunTimeline, StageCall
from ridgeline.records.realtime_blame import CauseShare, MissCause
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
