"""What one rank brings to the critical path: small, so that many ranks are never held together.

Ranks meet at collectives and nowhere else. So of a rank's graph (`dependencies.py`) two things are
kept, and the trace is not:

- the walks back: from the start of each collective, and from the last moment, along binding edges
  to the beginning. They join early, so that together they are hardly longer than one path.
- for a what-if, the graph without the moments that have one edge only. Such a moment gets as much
  earlier as its source does, plus what its own edge is shortened by:

      earlier(node) = earlier(source) + r · weight

  so that it is put into the edges that leave it. Moments with a choice of edges stay, and the two
  ends of collectives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import Codes, Floats, Ints, Mask, Narrow, Trace, empty_trace
from ridgeline.trace.communication.matching import RankCollectives, rank_collectives
from ridgeline.trace.critical_path.dependencies import dependencies
from ridgeline.trace.critical_path.moments import (
    EDGE_NAMES,
    FREE_EDGE,
    HOST_EDGE,
    LAUNCH_EDGE,
    QUEUE_EDGE,
    RUN_EDGE,
    SLOTS,
    STREAM_EDGE,
    SYNC_EDGE,
    WAIT_EDGE,
    Moments,
    jumps,
)
from ridgeline.trace.host_calls import innermost_at
from ridgeline.trace.kernel_names import KERNEL_CLASSES, kernel_classes
from ridgeline.trace.sorting import distinct
from ridgeline.trace.time.idle import LAUNCH_GAP_US
from ridgeline.trace.waits import NONE
from ridgeline.trace.windows import span_us

HOST_CLASSES = {
    HOST_EDGE: "host", LAUNCH_EDGE: "launch", STREAM_EDGE: "gap", WAIT_EDGE: "wait",
    SYNC_EDGE: "synchronise",
    FREE_EDGE: "synchronise", QUEUE_EDGE: "launch",
}  # fmt: skip
"""Sort of an edge → the name that what-if knows it by; GPU pieces have their kernel's class."""
STARTING = "before the first event"
STALLED = "launched, and nothing shows what it waits for"
"""Work that had been launched for longer than a launch takes (`LAUNCH_GAP_US`): a stall of the
device or its driver, or work of the GPU that was not recorded."""
_NO_OPERATOR = "host, no operator"
ROOT = 0
"""The moment of a `ShortenedGraph` that nothing leads to, and that nothing makes earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walks:
    """The moments on the walks back, in order of time, each with the piece that ends there."""

    origin_us: float
    """The first moment of the rank, whether a walk comes by or not."""
    time_us: Floats
    source: Narrow
    """The moment before it on the walk; NONE where the walk begins."""
    kind: Codes
    """What the piece is, as an index into `KINDS`."""
    label: Narrow
    """The piece's name, as an index into `names`."""
    names: tuple[str, ...]
    gpu_event: Narrow
    """Row of the trace's GPU table, or NONE for a host point."""
    stream: Ints
    """The stream of a GPU event."""
    thread: Narrow
    """The thread of a host point."""
    starts: Narrow
    """The moment at which each collective starts."""
    ends: Narrow
    """The moment at which each collective ends, or NONE where no walk comes by."""

    def __len__(self) -> int:
        return len(self.time_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortenedGraph:
    """How much earlier a moment gets: the least over its slots of margin + earlier(source)."""

    source: Narrow
    """The node that each edge comes from, (nodes, SLOTS)."""
    margin_us: Floats
    """What each edge has to spare and is shortened by, (nodes, SLOTS); infinite without an edge."""
    latest_us: Floats
    """Latest moment that gets earlier by exactly what the node does."""
    starts: Narrow
    """The node of each collective's start."""
    ends: Narrow
    reduction: Floats
    """By which fraction each collective's transfer is shortened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPath:
    """What one rank brings to the path of the job."""

    collectives: RankCollectives
    first_us: float
    """The first event of any sort."""
    walks: Walks
    shortened: ShortenedGraph | None


KINDS = (*KERNEL_CLASSES, *dict.fromkeys(HOST_CLASSES.values()))
"""What a piece of the path can be."""
_KIND_OF_EDGE = np.array(
    [KINDS.index(HOST_CLASSES.get(edge, "host")) for edge in range(len(EDGE_NAMES))], np.int8
)
"""By the number of the edge; that of a kernel is its class."""


def rank_path(trace: Trace, shorten: Mapping[str, float] | None = None) -> RankPath:
    """The walks back of one trace; with `shorten` (class → percent) what a what-if needs too."""
    # Without GPU work the host waits for nothing.
    moments = dependencies(trace if len(trace.gpu) else empty_trace(trace.file))
    collectives = rank_collectives(trace)
    starts, ends = _nodes_of_events(moments, len(trace.gpu))
    starts, ends = starts[collectives.rows], ends[collectives.rows]
    return RankPath(
        collectives=collectives,
        first_us=span_us(trace)[0],
        walks=_walks(trace, moments, starts, ends),
        shortened=_shortened(trace, moments, starts, ends, shorten) if shorten else None,
    )


def _nodes_of_events(moments: Moments, count: int) -> tuple[Ints, Ints]:
    """The nodes of each GPU event's start and end."""
    starts, ends = np.full(count, NONE, np.int64), np.full(count, NONE, np.int64)
    first = np.flatnonzero((moments.gpu_event >= 0) & ~moments.is_end)
    last = np.flatnonzero((moments.gpu_event >= 0) & moments.is_end)
    starts[moments.gpu_event[first]] = first
    ends[moments.gpu_event[last]] = last
    return starts, ends


# -- the walks back -----------------------------------------------------------------------------


def _walks(trace: Trace, moments: Moments, starts: Ints, ends: Ints) -> Walks:
    size = len(moments)
    rows, binding = np.arange(size), moments.binding
    parent = moments.source[rows, binding]
    kept = _reached(parent, [*starts.tolist(), size - 1] if size else [])
    nodes = np.flatnonzero(kept)
    place = np.full(size + 1, NONE, np.int64)  # the last entry answers for NONE
    place[nodes] = np.arange(len(nodes))
    event = moments.gpu_event[nodes]
    edge = moments.edge[nodes, binding[nodes]]
    run = (edge == RUN_EDGE) & (parent[nodes] != NONE)
    kind = _KIND_OF_EDGE[edge]
    kind[run] = kernel_classes(trace)[event[run]]
    label, names = _labels(trace, moments, nodes, parent, binding)
    on_gpu = event != NONE
    stream = np.full(len(nodes), NONE, np.int64)
    stream[on_gpu] = trace.gpu.stream[event[on_gpu]]
    return Walks(
        origin_us=float(moments.time_us[0]) if size else 0.0,
        time_us=moments.time_us[nodes],
        source=place[parent[nodes]].astype(np.int32),
        kind=kind,
        label=label,
        names=names,
        gpu_event=event.astype(np.int32),
        stream=stream,
        thread=moments.thread[nodes].astype(np.int32),
        starts=place[starts].astype(np.int32),
        ends=place[ends].astype(np.int32),
    )


def _reached(parent: Narrow, roots: list[int]) -> Mask:
    """Which nodes lie on a walk back from one of the roots."""
    kept = bytearray(len(parent))
    parents = parent.data
    for root in roots:
        node = root
        while node != NONE and not kept[node]:
            kept[node] = 1
            node = parents[node]
    return np.frombuffer(kept, np.uint8).astype(bool)


def _labels(
    trace: Trace, moments: Moments, nodes: Ints, parent: Narrow, binding: Ints
) -> tuple[Narrow, tuple[str, ...]]:
    """What the piece that ends in each node was: a kernel, or the innermost host event in it."""
    edge = moments.edge[nodes, binding[nodes]]
    source = parent[nodes]
    begins = source == NONE
    # Texts of the trace, then those of edges, then some of our own; unused ones are dropped below.
    texts = len(trace.names)
    label = texts + edge.astype(np.int64)
    stalled = (edge == LAUNCH_EDGE) & ~begins
    stalled[stalled] = (moments.time_us[nodes] - moments.time_us[source])[stalled] >= LAUNCH_GAP_US
    label[stalled] = texts + len(EDGE_NAMES) + 2
    run = (edge == RUN_EDGE) & ~begins
    label[run] = trace.gpu.name[moments.gpu_event[nodes[run]]]
    returns = np.isin(edge, (SYNC_EDGE, FREE_EDGE, QUEUE_EDGE)) & (binding[nodes] == 0)
    own = (edge == HOST_EDGE) | returns
    own = (own | begins) & (moments.gpu_event[nodes] == NONE)
    asked = nodes[own]
    since = np.where(begins[own], moments.time_us[:1], moments.time_us[source[own]])
    found = innermost_at(trace, moments.thread[asked], (moments.time_us[asked] + since) / 2)
    none = np.where(begins[own], texts + len(EDGE_NAMES) + 1, texts + len(EDGE_NAMES))
    named = trace.host.name[found] if len(trace.host) else none
    label[own] = np.where(found != NONE, named, none)
    label[begins & ~own] = texts + len(EDGE_NAMES) + 1
    every = (*trace.names, *EDGE_NAMES.values(), _NO_OPERATOR, STARTING, STALLED)
    used = distinct(label)
    places = np.searchsorted(used, label)
    return places.astype(np.int32), tuple(every[number] for number in used.tolist())


# -- what-if ------------------------------------------------------------------------------------


def _shortened(
    trace: Trace, moments: Moments, starts: Ints, ends: Ints, shorten: Mapping[str, float]
) -> ShortenedGraph:
    classes = kernel_classes(trace)[rank_collectives(trace).rows].tolist()
    return shortened_graph(
        source=moments.source,
        margin_us=_margins(trace, moments, shorten),
        latest_us=moments.time_us,
        starts=starts,
        ends=ends,
        reduction=np.array([shorten.get(KERNEL_CLASSES[code], 0.0) / 100 for code in classes]),
    )


def shortened_graph(
    *,
    source: Ints | Narrow,
    margin_us: Floats,
    latest_us: Floats,
    starts: Ints,
    ends: Ints,
    reduction: Floats,
    choices: Mask | None = None,
) -> ShortenedGraph:
    """A graph without the moments that have no choice, but for where collectives start and end.

    Args:
        source: the node that each edge comes from, (nodes, SLOTS), which lies before the node.
        margin_us: what each edge has to spare and is shortened by; infinite for none.
        latest_us: the time of each node; minus infinity where it does not end the rank.
        starts: the node at which each collective starts.
        ends: and ends.
        reduction: by which fraction each one's transfer is shortened.
        choices: the nodes that stay, for graphs under several cures that are laid over each other;
            those of this one without.
    """
    size = len(source)
    edges = np.isfinite(margin_us)
    stays = edges.sum(axis=1) > 1 if choices is None else choices.copy()
    stays[starts] = stays[ends] = True
    kept = np.flatnonzero(stays)
    jump, behind = jumps(source, margin_us, edges, stays)
    number = np.full(size + 1, ROOT, np.int64)
    number[kept] = 1 + np.arange(len(kept))
    known = np.where(edges[kept] & (source[kept] != NONE), source[kept], size)
    margins = np.where(edges[kept], margin_us[kept] + behind[known], np.inf)
    margins[~edges[kept].any(axis=1), 0] = 0.0  # nothing leads there: nothing makes it earlier
    latest = np.full(1 + len(kept), -np.inf)
    np.maximum.at(latest, number[jump[:size]], latest_us - behind[:size])
    return ShortenedGraph(
        source=np.concatenate((np.zeros((1, SLOTS)), number[jump[known]])).astype(np.int32),
        margin_us=np.concatenate((np.full((1, SLOTS), np.inf), margins)),
        latest_us=latest,
        starts=number[starts].astype(np.int32),
        ends=number[ends].astype(np.int32),
        reduction=reduction,
    )


def _margins(trace: Trace, moments: Moments, shorten: Mapping[str, float]) -> Floats:
    """What each edge has to spare and is shortened by; infinite where there is no edge."""
    time, source, weight = moments.time_us, moments.source, moments.weight_us
    fraction = np.zeros(moments.edge.shape)
    for edge, name in HOST_CLASSES.items():
        fraction[moments.edge == edge] = shorten.get(name, 0.0) / 100
    of_class = np.array([shorten.get(name, 0.0) / 100 for name in KERNEL_CLASSES])
    node, slot = np.nonzero(moments.edge == RUN_EDGE)
    fraction[node, slot] = of_class[kernel_classes(trace)[moments.gpu_event[node]]]
    slack = np.maximum(time[:, None] - (time[source] + weight), 0.0)
    rows, binding = np.arange(len(time)), moments.binding
    slack[rows, binding] = 0.0
    found: Floats = np.where(source >= 0, slack + fraction * weight, np.inf)
    return found
