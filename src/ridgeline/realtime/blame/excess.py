"""What one call took beyond the usual, split into kinds of cause.

The thread's own accounts add up: duration = CPU + waits for a core + the rest, in which it was
blocked. CPU beyond the usual is garbage collection, page faults at the price that one was measured
to have, a slower clock, and what is left: more work. Waits for a core and collections are unusual
whenever they happen; all else is held against the stage's own usual.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, replace

from ridgeline.quantity import percent
from ridgeline.quantity import seconds as seconds_text
from ridgeline.realtime.blame.timeline import RunTimeline, StageCall, StageTimeline
from ridgeline.records.realtime_blame import MissKind

_SLOW_CLOCK = 1.15
"""The fixed work beside a call takes so much longer than its median when the core is slower."""
_FAULT_SPREAD = 1.5
"""Real faults cost up to so much more than those measured on memory that is used for nothing."""
_LOCK_PATIENCE_SECONDS = sys.getswitchinterval()
"""A thread that waits for the interpreter's lock wakes so often to ask again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Time beyond the usual, with its cause."""

    place: str
    kind: MissKind
    seconds: float
    evidence: str
    co_runner: str = ""
    frame: int | None = None
    """The frame of the call that it fell on."""


def call_excess(timeline: RunTimeline, call: StageCall) -> list[Excess]:
    """The causes for which a call took longer than usual, the largest first."""
    stage = timeline.stages[call.stage]
    at = call.index
    beyond = float(stage.seconds[at]) - stage.usual_seconds
    if beyond <= 0:
        return []
    if stage.cpu is None or stage.core_wait is None:
        causes = [_unobserved(stage, at, beyond)]
    else:
        causes = [
            *_away(timeline, stage, at),
            *_on_gpu(stage, at),
            *_on_cpu(timeline, stage, at),
            *_blocked(timeline, stage, at),
        ]
    frame = stage.frames[at]
    found = [
        replace(cause, frame=frame, seconds=min(cause.seconds, beyond))
        for cause in causes
        if cause.seconds > 0
    ]
    return sorted(found, key=lambda cause: -cause.seconds)


def core_excess(
    timeline: RunTimeline, stage: StageTimeline, at: int, waited: float, start: float, end: float
) -> Excess:
    """A wait for a core, with who had it."""
    core = stage.cores[at] if stage.cores else None
    rivals = timeline.rivals(stage.name, start, end, core)
    named = rivals[0] if rivals else None
    said = f"{stage.name} could run and had no core for {seconds_text(waited)}"
    if named is None:
        return Excess(
            place=stage.name,
            kind="waiting for a core",
            seconds=waited,
            evidence=f"{said}; nobody was seen to use it for long",
        )
    outside = named.kind not in ("stage", "interrupts", "hypervisor")
    throttled = named.kind == "quota" or (timeline.real_time and outside)
    why = ", although its priority is real-time" if throttled and named.kind != "quota" else ""
    return Excess(
        place=stage.name,
        kind="throttle" if throttled else "waiting for a core",
        seconds=waited,
        co_runner=named.name,
        evidence=f"{said}{why}; {named.name} ran",
    )


def _unobserved(stage: StageTimeline, at: int, beyond: float) -> Excess:
    took, usual = seconds_text(float(stage.seconds[at])), seconds_text(stage.usual_seconds)
    if stage.cpu is not None and float(stage.cpu[at]) - stage.usual_cpu > beyond / 2:
        return Excess(
            place=stage.name,
            kind="more work",
            seconds=beyond,
            evidence=f"{stage.name} took {took}, usually {usual}, and computed all the while",
        )
    return Excess(
        place=stage.name,
        kind="not known",
        seconds=beyond,
        evidence=f"{stage.name} took {took}, usually {usual}; nothing was observed beside it",
    )


def _away(timeline: RunTimeline, stage: StageTimeline, at: int) -> list[Excess]:
    causes = []
    start, end = float(stage.started[at]), float(stage.ended[at])
    if stage.core_wait is not None and stage.core_wait[at] > 0:
        causes.append(core_excess(timeline, stage, at, float(stage.core_wait[at]), start, end))
    if stage.collecting is not None and stage.collecting[at] > 0:
        spent = float(stage.collecting[at])
        inside = timeline.collections(start, end)
        oldest = max((each.generation for each in inside), default=0)
        causes.append(
            Excess(
                place=stage.name,
                kind="garbage collection",
                seconds=spent,
                evidence=f"{seconds_text(spent)} of the call were garbage collection, "
                f"generation {oldest}",
            )
        )
    return causes


def _on_gpu(stage: StageTimeline, at: int) -> list[Excess]:
    if stage.gpu is None:
        return []
    taken = float(stage.gpu[at])
    return [
        Excess(
            place=stage.name,
            kind="more work",
            seconds=taken - stage.usual_gpu,
            evidence=f"{seconds_text(taken)} on the GPU, usually {seconds_text(stage.usual_gpu)}",
        )
    ]


def _on_cpu(timeline: RunTimeline, stage: StageTimeline, at: int) -> list[Excess]:
    own = stage.own_cpu()
    if own is None:
        return []
    taken = float(own[at])
    left = taken - stage.usual_cpu
    if left <= 0:
        return []
    causes = []
    price = timeline.run.page_fault_seconds
    if price and stage.page_faults is not None:
        faults = float(stage.page_faults[at]) - stage.usual_faults
        spent = min(left, max(0.0, faults) * price * _FAULT_SPREAD)
        left -= spent
        causes.append(
            Excess(
                place=stage.name,
                kind="page faults",
                seconds=spent,
                evidence=f"{stage.page_faults[at]:,.0f} page faults, usually "
                f"{stage.usual_faults:,.0f}, of {seconds_text(price)} each",
            )
        )
    slowdown = float(stage.slowdowns[at]) if stage.slowdowns is not None else 1.0
    if slowdown > _SLOW_CLOCK:
        spent = min(left, taken * (1.0 - 1.0 / slowdown))
        left -= spent
        causes.append(
            Excess(
                place=stage.name,
                kind="lower clock",
                seconds=spent,
                evidence=f"a fixed piece of work right after the call took {slowdown:.2f} times "
                "its usual CPU time",
            )
        )
    causes.append(
        Excess(
            place=stage.name,
            kind="more work",
            seconds=left,
            evidence=f"{seconds_text(taken)} of CPU, usually {seconds_text(stage.usual_cpu)}",
        )
    )
    return causes


def _blocked(timeline: RunTimeline, stage: StageTimeline, at: int) -> list[Excess]:
    blocked = stage.blocked()
    if blocked is None:
        return []
    beyond = float(blocked[at]) - stage.usual_blocked
    if stage.gpu is not None:
        beyond -= max(0.0, float(stage.gpu[at]) - stage.usual_gpu)
    if beyond <= 0:
        return []
    return [_blocked_by(timeline, stage, at, beyond)]


def _blocked_by(timeline: RunTimeline, stage: StageTimeline, at: int, beyond: float) -> Excess:
    start, end = float(stage.started[at]), float(stage.ended[at])
    name = stage.name
    states = Counter(timeline.wait_states(name, start, end))
    state = states.most_common(1)[0][0] if states else ""
    switches = float(stage.switches[at]) if stage.switches is not None else 1.0
    other = other_collection(timeline, name, start, end)
    if other is not None and other.seconds > beyond / 2:
        return replace(other, seconds=beyond)
    if stage.major_faults is not None and stage.major_faults[at] > 0 and state in ("", "disk"):
        pages = f"{stage.major_faults[at]:,.0f} pages came from a disk"
        return Excess(place=name, kind="page faults", seconds=beyond, evidence=pages)
    if not switches and not states:
        return replace(
            core_excess(timeline, stage, at, beyond, start, end),
            evidence=f"{name} neither ran nor waited for {seconds_text(beyond)}: "
            "its core was taken from below",
            co_runner="the hypervisor",
        )
    asked = switches >= max(2.0, 0.5 * beyond / _LOCK_PATIENCE_SECONDS)
    if state == "lock" or (not state and asked):
        found = _lock_holder(timeline, name, start, end)
        if found:
            return Excess(
                place=name,
                kind="lock",
                seconds=beyond,
                co_runner=found,
                evidence=f"{name} waited {seconds_text(beyond)} for a lock while {found} ran",
            )
    seen = {
        "sleeps": "it slept",
        "disk": "it waited for a disk",
        "lock": "it waited for a lock or for threads of its own",
        "waits": "it waited for a socket, a pipe or another process",
    }.get(state, "it waited")
    count = f", seen {percent(states[state] / states.total())} of the times" if states else ""
    return Excess(
        place=name,
        kind="blocked",
        seconds=beyond,
        evidence=f"{seconds_text(beyond)} of the call without computing: {seen}{count}",
    )


def _lock_holder(timeline: RunTimeline, stage: str, start: float, end: float) -> str:
    """Who could have held a lock that a stage waited for; empty: nobody in its process."""
    if not timeline.one_interpreter:
        return ""
    beside, seconds = timeline.beside(stage, start, end)
    if seconds > (end - start) / 4:
        return f"stage {beside}"
    threads = [
        rival.name
        for rival in timeline.rivals(stage, start, end, None)
        if rival.name.startswith("thread of the run")
    ]
    return threads[0] if threads else ""


def other_collection(timeline: RunTimeline, stage: str, start: float, end: float) -> Excess | None:
    """Collections of other threads of the process in a window: they hold the interpreter."""
    if not timeline.one_interpreter or timeline.one_thread:
        return None
    others = [each for each in timeline.collections(start, end) if each.thread != stage]
    spent = sum(min(each.ended, end) - max(each.started, start) for each in others)
    if not others:
        return None
    longest = max(others, key=lambda each: each.ended - each.started)
    return Excess(
        place=stage,
        kind="garbage collection",
        seconds=spent,
        co_runner=f"stage {longest.thread}"
        if longest.thread in timeline.stages
        else longest.thread,
        evidence=f"{stage} stood still for {seconds_text(spent)} while {longest.thread} "
        f"collected garbage, generation {longest.generation}",
    )
