"""An annotated trace for Perfetto: what was recorded, with counters and the critical path drawn in.

Format: Chrome's trace events ("Trace Event Format", Google, 2016), JSON Object form: `X` slices,
`C` counters, `M` names, `s`/`f` flows, which ui.perfetto.dev and chrome://tracing open. Times are
in microseconds on one clock for all ranks (`communication/matching.py`). Each rank has three
processes: its host, its GPU and its counters; the critical path is a process of its own, with a
flow from every piece to the next where they are on different tracks.

Ranks are written one after the other and need not be in memory together: clocks and the path come
from what `rank_path.py` keeps of each.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from ridgeline.records.store import whole_file
from ridgeline.trace.columns import ABSENT, Category, Trace
from ridgeline.trace.critical_path.path import PathPiece, job_pieces
from ridgeline.trace.critical_path.rank_path import RankPath
from ridgeline.trace.host_calls import launch_rows
from ridgeline.trace.kernel_names import KERNEL_CLASSES, kernel_classes
from ridgeline.trace.pictures.timeline import counters
from ridgeline.trace.sorting import each

COUNTER_SLICES = 2000
PATH_PROCESS = 1_000_000
_PER_RANK = 10
_HOST, _GPU, _COUNTERS = 1, 2, 3
_TOGETHER = 4096
"""Events that are encoded at a time."""

Event = dict[str, Any]


def export_chrome(traces: Iterable[Trace], paths: Sequence[RankPath], path: Path) -> dict[str, int]:
    """Write the annotated trace; returns how many events of each sort. Whole file or none.

    `paths` holds the `rank_path` of each trace, in the same order.
    """
    counts = {"events": 0, "flows": 0, "counters": 0, "path_pieces": 0}
    encode = msgspec.json.Encoder().encode
    with whole_file(path) as whole, _packed(whole, path) as file:
        file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
        events = _events(traces, paths, counts)
        while many := [encode(event) for event in islice(events, _TOGETHER)]:
            file.write((b",\n" if counts["events"] else b"") + b",\n".join(many))
            counts["events"] += len(many)
        file.write(b"\n]}\n")
    return counts


def _packed(file: BinaryIO, path: Path) -> AbstractContextManager[BinaryIO]:
    if not path.name.endswith(".gz"):
        return nullcontext(file)
    return cast("BinaryIO", gzip.GzipFile(path.name, "wb", compresslevel=5, fileobj=file))


def _events(
    traces: Iterable[Trace], paths: Sequence[RankPath], counts: dict[str, int]
) -> Iterator[Event]:
    pieces, shifts = job_pieces(paths)
    origin = min(
        (path.first_us + shift for path, shift in zip(paths, shifts, strict=True)), default=0.0
    )
    flows = _Flows(counts)
    following = iter(traces)
    for rank, shift in enumerate(shifts):
        # Not a loop over the traces: it would hold one while the next is read.
        trace = next(following)
        yield from _rank_events(trace, rank, shift - origin, flows)
        yield from _counter_events(trace, rank, shift - origin, counts)
        del trace
    yield from _path_events(pieces, origin, flows, counts)


class _Flows:
    """Arrows between tracks, numbered."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts

    def arrow(
        self, name: str, source: tuple[int, int, float], target: tuple[int, int, float]
    ) -> Iterable[Event]:
        """An arrow between two (process, thread, time)."""
        self.counts["flows"] += 1
        number = self.counts["flows"]
        shared = {"name": name, "cat": name, "id": number}
        yield {"ph": "s", **shared, "pid": source[0], "tid": source[1], "ts": _ts(source[2])}
        yield {"ph": "f", "bp": "e", **shared, "pid": target[0], "tid": target[1],
               "ts": _ts(target[2])}  # fmt: skip


def _rank_events(trace: Trace, rank: int, shift: float, flows: _Flows) -> Iterator[Event]:
    host_process, gpu_process = (_PER_RANK * rank + part for part in (_HOST, _GPU))
    label = f"rank {rank if trace.rank is None else trace.rank}"
    yield _named("process_name", host_process, 0, f"{label} host")
    yield _named("process_name", gpu_process, 0, f"{label} GPU")
    for thread in range(len(trace.threads)):
        text = f"{trace.thread_names.get(thread, 'thread')} {trace.threads[thread][1]}"
        yield _named("thread_name", host_process, thread, text)
    host, gpu, names = trace.host, trace.gpu, trace.names
    for start, duration, name, category, thread in zip(
        each(host.start_us), each(host.duration_us), each(host.name),
        each(host.category), each(host.thread), strict=True,
    ):  # fmt: skip
        yield {
            "ph": "X", "name": names[name], "cat": Category(category).name.lower(),
            "pid": host_process, "tid": thread, "ts": _ts(start + shift), "dur": _ts(duration),
        }  # fmt: skip
    classes, launched = kernel_classes(trace).tolist(), launch_rows(trace).tolist()
    for row, (start, duration, name, stream) in enumerate(
        zip(gpu.start_us.tolist(), gpu.duration_us.tolist(), gpu.name.tolist(),
            gpu.stream.tolist(), strict=True)
    ):  # fmt: skip
        track = max(0, int(stream))
        event: Event = {
            "ph": "X", "name": names[name], "cat": KERNEL_CLASSES[classes[row]],
            "pid": gpu_process, "tid": track, "ts": _ts(start + shift), "dur": _ts(duration),
        }  # fmt: skip
        call = launched[row]
        if call != ABSENT:
            at = float(host.start_us[call])
            event["args"] = {"launch to start (us)": round(start - at, 3)}
            source = (host_process, int(host.thread[call]), at + shift)
            yield from flows.arrow("launch", source, (gpu_process, track, start + shift))
        yield event


def _counter_events(
    trace: Trace, rank: int, shift: float, counts: dict[str, int]
) -> Iterator[Event]:
    if not len(trace.gpu):
        return
    process = _PER_RANK * rank + _COUNTERS
    label = f"rank {rank if trace.rank is None else trace.rank}"
    yield _named("process_name", process, 0, f"{label} counters")
    found = counters(trace, min(COUNTER_SLICES, max(10, 2 * len(trace.gpu))))
    series = {
        "GPU busy %": found.busy * 100,
        "communication %": found.communication * 100,
        "queue depth": found.queue_depth,
    }
    if found.memory_bytes is not None:
        series["GPU memory bytes"] = found.memory_bytes
    for name, values in series.items():
        before = None
        for start, value in zip(found.edges_us[:-1].tolist(), values.tolist(), strict=True):
            if value != before:
                counts["counters"] += 1
                yield {"ph": "C", "name": name, "pid": process, "ts": _ts(start + shift),
                       "args": {"value": round(value, 3)}}  # fmt: skip
            before = value


def _path_events(
    pieces: Sequence[PathPiece], origin: float, flows: _Flows, counts: dict[str, int]
) -> Iterator[Event]:
    if not pieces:
        return
    yield _named("process_name", PATH_PROCESS, 0, "critical path")
    before: PathPiece | None = None
    for piece in pieces:
        counts["path_pieces"] += 1
        start = piece.start_us - origin
        yield {
            "ph": "X", "name": piece.name, "cat": piece.kind, "pid": PATH_PROCESS, "tid": 0,
            "ts": _ts(start), "dur": _ts(piece.duration_us), "args": {"kind": piece.kind},
        }  # fmt: skip
        source, target = _track(before), _track(piece)
        if before is not None and source is not None and target is not None and source != target:
            ended = before.start_us + before.duration_us - origin
            yield from flows.arrow("critical path", (*source, ended), (*target, start))
        before = piece


def _track(piece: PathPiece | None) -> tuple[int, int] | None:
    """The process and thread that a piece ran on."""
    if piece is None:
        return None
    if piece.stream is not None:
        return _PER_RANK * piece.rank + _GPU, max(0, piece.stream)
    return None if piece.thread is None else (_PER_RANK * piece.rank + _HOST, piece.thread)


def _named(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _ts(us: float) -> float:
    """Nanoseconds are as fine as profilers are."""
    return round(us, 3)
