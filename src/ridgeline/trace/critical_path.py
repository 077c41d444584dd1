"""The critical path: the chain of moments that made the run as long as it was; and what-if.

From the last moment back along the binding edges of `dependencies.py`: the pieces of the path add
up to the window exactly. A what-if shortens every piece of some classes by a percentage and
recomputes each moment as the latest of its sources plus weights; nothing else moves, so another
edge may bind and the gain is smaller than the share on the path.

How much earlier a moment gets, with r the reduction of an edge and slack what it has to spare
(max-plus algebra; slack of the binding edge is 0, hence 0 % changes nothing):

    earlier(node) = min over edges of ( slack + earlier(source) + r · weight )

    critical_path([trace])                         where the time of the window went
    critical_path([trace], {"gemm": 20.0})         and what 20 % shorter matrix products would bring
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.trace.columns import Floats, Ints, Trace
from ridgeline.trace.dependencies import (
    EDGE_NAMES,
    HOST_EDGE,
    LAUNCH_EDGE,
    RUN_EDGE,
    STREAM_EDGE,
    SYNC_EDGE,
    WAIT_EDGE,
    Moments,
)
from ridgeline.trace.innermost import innermost_at
from ridgeline.trace.kernel_classes import KERNEL_CLASSES, kernel_classes
from ridgeline.trace.rank_dependencies import joined_dependencies

HOST_CLASSES = {
    HOST_EDGE: "host", LAUNCH_EDGE: "launch", STREAM_EDGE: "gap", WAIT_EDGE: "wait",
    SYNC_EDGE: "synchronise",
}  # fmt: skip
"""Sort of an edge → the name that what-if knows it by; GPU pieces have their kernel's class."""
WHAT_IF_CLASSES = (*KERNEL_CLASSES, *HOST_CLASSES.values())
STARTING = "before the first event"
TOP = 30


class PathPart(msgspec.Struct, frozen=True, kw_only=True):
    """One class, or one name, on the path."""

    name: str
    kind: str
    """Class of kernel, or `host`, `launch`, `gap`, `wait`, `synchronise`."""
    us: float
    share: float
    """Of the window."""
    pieces: int


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The same run with some classes shorter."""

    shortened: dict[str, float]
    """Class → percent."""
    window_us: float
    saved_us: float
    speedup: float


class PathPiece(msgspec.Struct, frozen=True, kw_only=True):
    """One step along the path, in time."""

    rank: int
    """Position of the trace in the input."""
    kind: str
    name: str
    start_us: float
    duration_us: float
    gpu_event: int | None
    """Row of the GPU table for pieces that ran on the GPU."""
    thread: int | None


class CriticalPath(msgspec.Struct, frozen=True, kw_only=True):
    """What the window was spent on, moment by moment."""

    files: list[str]
    window_us: float
    start_us: float
    path_us: float
    """Sum of the pieces: the window."""
    classes: list[PathPart]
    names: list[PathPart]
    """The longest names, at most `TOP`."""
    ranks: dict[str, float]
    """Share of the path per rank; more than one only where collectives join them."""
    what_if: WhatIf | None
    warnings: list[str]


def critical_path(
    traces: Sequence[Trace], shorten: Mapping[str, float] | None = None
) -> CriticalPath:
    """The critical path over host threads, streams and ranks.

    Raises:
        InputError: a class that there is not, or a percentage outside 0 … 100.
    """
    _check(shorten or {})
    moments, rank_of, warnings = joined_dependencies(traces)
    files = [trace.file for trace in traces]
    if not len(moments):
        warnings.append("no GPU work in it: a critical path needs launches and GPU events")
        return CriticalPath(
            files=files, window_us=0.0, start_us=0.0, path_us=0.0, classes=[], names=[], ranks={},
            what_if=None, warnings=warnings,
        )  # fmt: skip
    pieces = _pieces(traces, moments, rank_of)
    window = float(moments.time_us[-1] - moments.time_us[0])
    return CriticalPath(
        files=files,
        window_us=window,
        start_us=float(moments.time_us[0]),
        path_us=sum(piece.duration_us for piece in pieces),
        classes=_ranked(pieces, window, by_name=False),
        names=_ranked(pieces, window, by_name=True)[:TOP],
        ranks=_by_rank(traces, pieces, window),
        what_if=_what_if(traces, moments, rank_of, shorten) if shorten else None,
        warnings=warnings,
    )


def path_pieces(traces: Sequence[Trace]) -> list[PathPiece]:
    """The path in order of time; empty without GPU work."""
    moments, rank_of, _ = joined_dependencies(traces)
    return _pieces(traces, moments, rank_of) if len(moments) else []


def _check(shorten: Mapping[str, float]) -> None:
    for name, percent in shorten.items():
        if name not in WHAT_IF_CLASSES:
            known = ", ".join(WHAT_IF_CLASSES)
            raise InputError(f"--what-if {name}: no such class; there are {known}")
        if not 0 <= percent <= 100:
            raise InputError(f"--what-if {name}={percent:g}: a percentage from 0 to 100")


def _walk(moments: Moments) -> tuple[Ints, Ints]:
    """Nodes of the path but the origin, earliest first, and the slot of each that binds."""
    binding = moments.binding
    has_source = np.max(moments.source, axis=1) >= 0
    nodes = []
    node = len(moments) - 1
    while has_source[node]:
        nodes.append(node)
        node = int(moments.source[node, binding[node]])
    nodes.append(node)
    path = np.array(nodes[::-1], np.int64)
    return path, binding[path]


def _pieces(traces: Sequence[Trace], moments: Moments, rank_of: Ints) -> list[PathPiece]:
    path, slots = _walk(moments)
    first = int(path[0])
    origin = float(moments.time_us[0])
    pieces = []
    labels = _host_labels(traces, moments, rank_of, path, slots)
    classes = [kernel_classes(trace) for trace in traces]
    if moments.time_us[first] > origin:
        pieces.append(_beginning(traces, moments, rank_of, first))
    for node, slot in zip(path[1:].tolist(), slots[1:].tolist(), strict=True):
        source = int(moments.source[node, slot])
        edge, rank = int(moments.edge[node, slot]), int(rank_of[node])
        event = int(moments.gpu_event[node])
        start = float(moments.time_us[source])
        duration = float(moments.time_us[node]) - start
        if duration <= 0:
            continue
        trace = traces[rank]
        if edge == RUN_EDGE:
            kind = KERNEL_CLASSES[classes[rank][event]]
            name = trace.names[trace.gpu.name[event]]
        else:
            kind = HOST_CLASSES[edge]
            name = labels.get(node, EDGE_NAMES[edge])
        pieces.append(
            PathPiece(
                rank=rank, kind=kind, name=name, start_us=start, duration_us=duration,
                gpu_event=event if event >= 0 else None,
                thread=int(moments.thread[node]) if event < 0 else None,
            )
        )  # fmt: skip
    return pieces


def _beginning(traces: Sequence[Trace], moments: Moments, rank_of: Ints, first: int) -> PathPiece:
    """From the first moment of the window to the first that the path knows a reason for."""
    rank, thread = int(rank_of[first]), int(moments.thread[first])
    origin, end = float(moments.time_us[0]), float(moments.time_us[first])
    name = STARTING
    if thread >= 0:
        middle = np.array([(origin + end) / 2 - moments.shifts_us[rank]])
        row = int(innermost_at(traces[rank], np.array([thread]), middle)[0])
        name = traces[rank].names[traces[rank].host.name[row]] if row >= 0 else STARTING
    return PathPiece(
        rank=rank, kind="host", name=name, start_us=origin, duration_us=end - origin,
        gpu_event=None, thread=thread if thread >= 0 else None,
    )  # fmt: skip


def _host_labels(
    traces: Sequence[Trace], moments: Moments, rank_of: Ints, path: Ints, slots: Ints
) -> dict[int, str]:
    """What each host piece of the path was: the innermost host event in its middle."""
    labels: dict[int, str] = {}
    edges = moments.edge[path, slots]
    own_time = (edges == HOST_EDGE) | ((edges == SYNC_EDGE) & (slots == 0))
    host = np.flatnonzero(own_time & (moments.gpu_event[path] < 0))
    host = host[host > 0]
    for rank, trace in enumerate(traces):
        own = host[rank_of[path[host]] == rank]
        nodes = path[own]
        sources = moments.source[nodes, slots[own]]
        middle = (moments.time_us[nodes] + moments.time_us[sources]) / 2
        rows = innermost_at(trace, moments.thread[nodes], middle - moments.shifts_us[rank])
        for node, row in zip(nodes.tolist(), rows.tolist(), strict=True):
            labels[node] = trace.names[trace.host.name[row]] if row >= 0 else "host, no operator"
    return labels


def _ranked(pieces: Sequence[PathPiece], window: float, *, by_name: bool) -> list[PathPart]:
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0])
    for piece in pieces:
        entry = totals[piece.name if by_name else piece.kind, piece.kind]
        entry[0] += piece.duration_us
        entry[1] += 1
    ranked = sorted(totals.items(), key=lambda item: (-item[1][0], item[0]))
    return [
        PathPart(name=name, kind=kind, us=us, share=us / window if window else 0.0,
                 pieces=int(many))
        for (name, kind), (us, many) in ranked
    ]  # fmt: skip


def _by_rank(
    traces: Sequence[Trace], pieces: Sequence[PathPiece], window: float
) -> dict[str, float]:
    totals: dict[str, float] = {}
    for piece in pieces:
        rank = traces[piece.rank].rank
        name = str(piece.rank if rank is None else rank)
        totals[name] = totals.get(name, 0.0) + piece.duration_us / window
    return totals


def _what_if(
    traces: Sequence[Trace], moments: Moments, rank_of: Ints, shorten: Mapping[str, float]
) -> WhatIf:
    reduction = _reductions(traces, moments, rank_of, shorten)
    earlier = _propagated(moments, reduction)
    before = float(moments.time_us[-1] - moments.time_us[0])
    after = float((moments.time_us - earlier).max() - moments.time_us[0])
    return WhatIf(
        shortened=dict(shorten),
        window_us=after,
        saved_us=before - after,
        speedup=before / after if after > 0 else float("inf"),
    )


def _reductions(
    traces: Sequence[Trace], moments: Moments, rank_of: Ints, shorten: Mapping[str, float]
) -> Floats:
    """By how much each edge gets shorter."""
    fraction = np.zeros(moments.edge.shape)
    for edge, name in HOST_CLASSES.items():
        fraction[moments.edge == edge] = shorten.get(name, 0.0) / 100
    per_class = np.array([shorten.get(name, 0.0) / 100 for name in KERNEL_CLASSES])
    run = moments.edge == RUN_EDGE
    of_node = np.zeros(len(moments))
    for rank, trace in enumerate(traces):
        own = np.flatnonzero((rank_of == rank) & (moments.gpu_event >= 0))
        of_node[own] = per_class[kernel_classes(trace)[moments.gpu_event[own]]]
    fraction = np.where(run, of_node[:, None], fraction)
    found: Floats = np.where(moments.source >= 0, fraction * moments.weight_us, 0.0)
    return found


def _propagated(moments: Moments, reduction: Floats) -> Floats:
    """How much earlier each moment gets."""
    time, source = moments.time_us, moments.source
    slack = time[:, None] - np.where(source >= 0, time[source] + moments.weight_us, -np.inf)
    margin = np.where(source >= 0, np.maximum(slack, 0.0) + reduction, np.inf)
    rows = np.arange(len(time))
    binding = moments.binding
    margin[rows, binding] = np.where(source[rows, binding] >= 0, reduction[rows, binding], np.inf)
    earlier = [0.0] * len(time)
    sources, margins = source.tolist(), margin.tolist()
    for node, (froms, spare) in enumerate(zip(sources, margins, strict=True)):
        best = float("inf")
        for origin, own in zip(froms, spare, strict=True):
            if origin >= 0:
                found = own + earlier[origin]
                best = min(best, found)
        earlier[node] = best if best != float("inf") else 0.0
    return np.array(earlier)
