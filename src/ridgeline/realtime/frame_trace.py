"""A run as a trace per frame: what ui.perfetto.dev and chrome://tracing draw.

Format: Chrome's trace events ("Trace Event Format", Google, 2016), JSON Object form, microseconds
since the run began. One track per stage holds its calls, tied frame by frame with arrows; above
them stands every frame from its stamp to its result, with its fate. Collections, and what else used
the machine, stand beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.frames.outcomes import LOST, leading_sensor
from ridgeline.records.realtime_run import FrameFates, RealtimeRun, StageCalls
from ridgeline.records.store import whole_file

FORMAT = "ridgeline realtime frames"
"""What `otherData.format` of the document says."""
_FRAMES, _STAGES, _MACHINE = 1, 2, 3
"""Numbers of the three groups of tracks."""
_TOGETHER = 4096
"""Events that are encoded at a time."""

Event = dict[str, Any]


def write_frame_trace(path: Path, run: RealtimeRun) -> None:
    """Write the trace of a run, whole or not at all."""
    encode = msgspec.json.Encoder().encode
    head = {"format": FORMAT, "pipeline": run.shape.name, "executor": run.executor}
    with whole_file(path) as file:
        file.write(b'{"displayTimeUnit":"ms","otherData":' + encode(head) + b',"traceEvents":[\n')
        waiting: list[bytes] = []
        separator = b""
        for event in frame_events(run):
            waiting.append(encode(event))
            if len(waiting) == _TOGETHER:
                file.write(separator + b",\n".join(waiting))
                separator, waiting = b",\n", []
        file.write((separator if waiting else b"") + b",\n".join(waiting) + b"\n]}\n")


def frame_events(run: RealtimeRun) -> Iterator[Event]:
    """Every event of the trace; names of tracks first."""
    yield from _names(run)
    for track, fates in enumerate(run.fates, 1):
        yield from _fates(run, fates, track)
    for track, calls in enumerate(run.calls, 1):
        yield from _calls(calls, track)
    yield from _arrows(run)
    yield from _beside(run)


def _names(run: RealtimeRun) -> Iterator[Event]:
    groups = ((_FRAMES, f"frames of {run.shape.name}"), (_STAGES, "stages"), (_MACHINE, "machine"))
    for group, name in groups:
        yield _name("process_name", group, 0, name)
        yield {"ph": "M", "name": "process_sort_index", "pid": group, "tid": 0,
               "args": {"sort_index": group}}  # fmt: skip
    for track, fates in enumerate(run.fates, 1):
        yield _name("thread_name", _FRAMES, track, f"{fates.sensor} → {fates.sink}")
    for track, calls in enumerate(run.calls, 1):
        yield _name("thread_name", _STAGES, track, calls.stage)
    yield _name("thread_name", _MACHINE, 1, "garbage collection")
    for track, process in enumerate(_processes(run), 2):
        yield _name("thread_name", _MACHINE, track, process)


def _name(kind: str, group: int, track: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": group, "tid": track, "args": {"name": name}}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _fates(run: RealtimeRun, fates: FrameFates, track: int) -> Iterator[Event]:
    """Each frame from stamp to fate, frames overlapping, and a mark where one was lost."""
    deadline = run.shape.deadline_seconds
    for number, (frame, stamp, arrived, ended, kind, place, reason) in enumerate(
        zip(fates.frames, fates.stamps, fates.arrived, fates.ended, fates.kinds, fates.places,
            fates.reasons, strict=True)
    ):  # fmt: skip
        until = max(stamp, run.seconds if ended is None else ended)
        where = {"pid": _FRAMES, "tid": track, "cat": "realtime frame"}
        same = {**where, "id": f"{track}.{number}", "name": f"frame {frame}: {kind}"}
        facts: Event = {"frame": frame, "fate": kind, "arrived_us": _microseconds(arrived)}
        if place:
            facts |= {"place": place, "reason": reason}
        yield {"ph": "b", "ts": _microseconds(stamp), "args": facts, **same}
        yield {"ph": "e", "ts": _microseconds(until), **same}
        if kind in LOST:
            yield {"ph": "i", "s": "t", "ts": _microseconds(until), **where, "args": facts,
                   "name": f"frame {frame} {kind} at {place}: {reason}"}  # fmt: skip
        elif kind == "late" and deadline is not None:
            yield {"ph": "i", "s": "t", "ts": _microseconds(stamp + deadline), **where,
                   "args": facts, "name": f"deadline of frame {frame}"}  # fmt: skip


def _calls(calls: StageCalls, track: int) -> Iterator[Event]:
    for place, (frame, ready, started, ended, mode) in enumerate(
        zip(calls.frames, calls.ready, calls.started, calls.ended, calls.modes, strict=True)
    ):
        facts: Event = {"frame": frame, "mode": mode, "waited_us": _microseconds(started - ready)}
        for name in ("cpu_seconds", "gpu_seconds", "enqueue_seconds"):
            column = getattr(calls, name)
            if column:
                facts[name.replace("seconds", "us")] = _microseconds(column[place])
        yield {
            "ph": "X",
            "pid": _STAGES,
            "tid": track,
            "cat": "realtime stage",
            "name": calls.stage if mode == "run" else f"{calls.stage} ({mode})",
            "ts": _microseconds(started),
            "dur": _microseconds(max(0.0, ended - started)),
            "args": facts,
        }


def _arrows(run: RealtimeRun) -> Iterator[Event]:
    """From call to call of one frame, in the order in which they began."""
    steps: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
    for track, calls in enumerate(run.calls, 1):
        sensor = leading_sensor(run.shape, calls.stage)
        for frame, started, ended in zip(calls.frames, calls.started, calls.ended, strict=True):
            steps.setdefault((sensor, frame), []).append((started, ended, track))
    for (sensor, frame), calls_of_frame in steps.items():
        ordered = sorted(calls_of_frame)
        if len(ordered) < 2:
            continue
        for place, (started, ended, track) in enumerate(ordered):
            kind = "s" if place == 0 else "f" if place == len(ordered) - 1 else "t"
            event: Event = {
                "ph": kind,
                "pid": _STAGES,
                "tid": track,
                "cat": "realtime frame",
                "name": f"{sensor} frame",
                "id": f"{sensor}.{frame}",
                "ts": _microseconds((started + ended) / 2),
            }
            yield event | ({"bp": "e"} if kind == "f" else {})


def _beside(run: RealtimeRun) -> Iterator[Event]:
    """Collections, and other processes in the intervals in which they were seen."""
    for one in run.collections:
        yield {
            "ph": "X",
            "pid": _MACHINE,
            "tid": 1,
            "cat": "realtime collection",
            "name": f"generation {one.generation}",
            "ts": _microseconds(one.started),
            "dur": _microseconds(max(0.0, one.ended - one.started)),
            "args": {"thread": one.thread},
        }
    tracks = {process: track for track, process in enumerate(_processes(run), 2)}
    for seen in run.interference:
        yield {
            "ph": "X",
            "pid": _MACHINE,
            "tid": tracks[seen.process],
            "cat": "realtime process",
            "name": seen.process,
            "ts": _microseconds(seen.started),
            "dur": _microseconds(max(0.0, seen.ended - seen.started)),
            "args": {"cpu_us": _microseconds(seen.cpu_seconds), "core": seen.core},
        }


def _processes(run: RealtimeRun) -> list[str]:
    return list(dict.fromkeys(one.process for one in run.interference))
