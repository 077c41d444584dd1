"""Why a stage did not start a frame that lay before it: its worker was busy, blocked, or not woken.

A worker that is busy without a pause works off what one slow call left behind; so the whole busy
stretch before the wait is searched, and the call in it that was most beyond its usual is guilty,
not the frame that happens to wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.quantity import percent
from ridgeline.quantity import seconds as seconds_text
from ridgeline.realtime.blame.excess import (
    Excess,
    call_excess,
    core_excess,
    other_collection,
)
from ridgeline.realtime.blame.timeline import RunTimeline, StageCall, StageTimeline

_PAUSE_SECONDS = 0.002
"""A worker that does nothing for longer has worked off what waited."""
_STRETCH_CALLS = 200
"""So many calls back a busy stretch is followed."""
_WORTH = 0.25
"""A slow call explains a wait when it took this share of it beyond its usual."""


def wait_excess(
    timeline: RunTimeline, stage: str, start: float, end: float, at: int | None = None
) -> Excess | None:
    """The cause of a wait for a stage.

    Args:
        timeline: The run.
        stage: The stage that the frame waited for.
        start: When the frame was there.
        end: When the stage began, or the frame was lost.
        at: The call that began at last; None: none did.
    """
    own = timeline.stages[stage]
    waited = end - start - own.usual_wait
    if waited <= 0:
        return None
    found = (
        _restart(timeline, stage, start, end, waited)
        or _behind(timeline, stage, start, end, waited)
        or (None if at is None else _late_wake(timeline, own, at, start, end, waited))
        or other_collection(timeline, stage, start, end)
    )
    if found is not None and found.seconds >= _WORTH * waited:
        return replace(found, seconds=min(found.seconds, waited))
    if _busy_share(timeline, stage, start, end) > 0.5:
        return queueing(timeline, stage, waited)
    beside, seconds = timeline.beside(stage, start, end)
    if timeline.one_interpreter and not timeline.one_thread and seconds > waited / 2:
        return Excess(
            place=stage,
            kind="lock",
            seconds=waited,
            co_runner=f"stage {beside}",
            evidence=f"{stage} was free and did not start for {seconds_text(waited)} "
            f"while {beside} ran in the same interpreter",
        )
    return Excess(
        place=stage,
        kind="not known",
        seconds=waited,
        evidence=f"the frame lay before {stage} for {seconds_text(end - start)}, and nothing was "
        "seen to be in its way",
    )


def _restart(
    timeline: RunTimeline, stage: str, start: float, end: float, waited: float
) -> Excess | None:
    deaths = timeline.deaths(stage)
    before = [death for death in deaths if start - 10.0 <= death <= end]
    if not before or timeline.stages[stage].overlapping(before[-1] + 1e-6, end - 1e-6):
        return None
    return Excess(
        place=stage,
        kind="restart",
        seconds=waited,
        evidence=f"{stage}'s process died {seconds_text(end - before[-1])} before, "
        "and was being started again",
    )


def _behind(
    timeline: RunTimeline, stage: str, start: float, end: float, waited: float
) -> Excess | None:
    """The slow call in the busy stretch before a wait: this worker's, or one's without room."""
    causes: list[Excess] = []
    names = [stage] if timeline.one_thread else timeline.downstream(stage)
    for name in names:
        for call in _busy_stretch(timeline, name, start, end):
            causes += call_excess(timeline, call)[:1]
    worst = max(causes, key=lambda cause: cause.seconds, default=None)
    if worst is None or worst.seconds < _WORTH * waited:
        return None
    return worst


def _busy_stretch(
    timeline: RunTimeline, stage: str, start: float, end: float
) -> Iterator[StageCall]:
    """Calls of a stage's worker in a window, and those before it without a pause between."""
    calls = sorted(
        (
            (float(other.started[index]), float(other.ended[index]), StageCall(other.name, index))
            for other in timeline.workers_of(stage)
            for index in _recent(other, end)
        ),
        key=lambda call: call[1],
        reverse=True,
    )
    reached = start
    for number, (began, ended, call) in enumerate(calls):
        if number >= _STRETCH_CALLS or ended < reached - _PAUSE_SECONDS:
            return
        yield call
        reached = min(reached, began)


def _recent(stage: StageTimeline, end: float) -> range:
    """The calls that began before a time, as many as a busy stretch can have."""
    upto = stage.overlapping(end, end).stop
    return range(max(0, upto - _STRETCH_CALLS), upto)


def _late_wake(
    timeline: RunTimeline, stage: StageTimeline, at: int, start: float, end: float, waited: float
) -> Excess | None:
    if stage.wake_wait is None or stage.wake_wait[at] < _WORTH * waited:
        return None
    return core_excess(timeline, stage, at, min(float(stage.wake_wait[at]), waited), start, end)


def _busy_share(timeline: RunTimeline, stage: str, start: float, end: float) -> float:
    """Share of a window in which the worker was in a call, or one after it that has no room."""
    names = [stage] if timeline.one_thread else timeline.downstream(stage)
    shares = [0.0]
    for name in names:
        workers = timeline.workers_of(name)
        busy = sum(worker.busy_between(start, end) for worker in workers)
        shares.append(busy / (end - start))
    return max(shares)


def queueing(timeline: RunTimeline, stage: str, waited: float) -> Excess:
    """A stage that cannot keep up: whoever sets its pace is guilty."""
    slowest = timeline.bottleneck(stage)
    seconds = max(timeline.run.seconds, 1e-9)
    share = timeline.stages[slowest].busy_seconds / seconds
    said = f"{slowest} is busy for {percent(share)} of the run"
    if timeline.one_thread:
        every = sum(each.busy_seconds for each in timeline.stages.values()) / seconds
        said = f"one thread calls all stages, for {percent(every)} of the run; {slowest} takes most"
    return Excess(
        place=slowest,
        kind="queueing",
        seconds=waited,
        evidence=f"the frame lay before {stage} for {seconds_text(waited)} longer than usual; "
        f"{said}",
    )
