"""The graphs of several ranks as one: collectives align.

A matched collective ends on a rank once the last of all ranks has arrived and the transfer is done.
Arrivals are a chain of moments, one per rank in the order in which they came: each waits for the
one before it and for its own rank's start, so the last of the chain is the last arrival, whoever
that is after a what-if. From there to a rank's own end is the transfer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ridgeline.trace.columns import Ints, Trace, empty_trace
from ridgeline.trace.dependencies import (
    RUN_EDGE,
    SLOTS,
    WAIT_EDGE,
    Moments,
    dependencies,
    tightened,
)
from ridgeline.trace.ranks import Job, job, rank_collectives
from ridgeline.trace.stream_waits import NONE


def joined_dependencies(traces: Sequence[Trace]) -> tuple[Moments, Ints, list[str]]:
    """One graph, the position of the trace of each node, and what should be said aloud."""
    if not any(len(trace.gpu) for trace in traces):
        moments = dependencies(empty_trace(""))  # hosts alone wait for nothing
        return moments, np.zeros(0, np.int64), []
    if len(traces) == 1:
        moments = dependencies(traces[0])
        return moments, np.zeros(len(moments), np.int64), []
    whole = job([rank_collectives(trace) for trace in traces])
    warnings = list(whole.warnings)
    if not whole.matched:
        warnings.append("no collective joins the ranks: the path is that of the one that ends last")
    moments, rank_of = _joined(traces, whole)
    return moments, rank_of, warnings


def _joined(traces: Sequence[Trace], whole: Job) -> tuple[Moments, Ints]:
    parts = [dependencies(trace) for trace in traces]
    sizes = [len(part) for part in parts]
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    time = [part.time_us + shift for part, shift in zip(parts, whole.shift_us, strict=True)]
    source = [
        np.where(part.source >= 0, part.source + offset, NONE)
        for part, offset in zip(parts, offsets, strict=False)
    ]
    many = sum(len(one.positions) for one in whole.matched)
    arrivals = _Arrivals(whole, _nodes_of_events(traces, parts, offsets), int(offsets[-1]), many)
    all_time = np.concatenate([*time, arrivals.time])
    all_source = np.concatenate([*source, arrivals.source])
    all_weight = np.concatenate([*(part.weight_us for part in parts), arrivals.weight])
    all_edge = np.concatenate([*(part.edge for part in parts), arrivals.edge])
    arrivals.redirect(all_time, all_source, all_weight, all_edge)
    rank_of = np.concatenate(
        [*(np.full(size, rank) for rank, size in enumerate(sizes)), arrivals.rank]
    ).astype(np.int64)
    # Arrivals come after every start at the same moment; each rank keeps its own order.
    turn = np.concatenate([*(np.arange(size) for size in sizes), np.arange(many) + max(sizes)])
    order = np.lexsort((turn, all_time))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    new_source = np.where(all_source[order] >= 0, place[all_source[order]], NONE)
    gone = np.full(many, NONE)
    moments = Moments(
        time_us=all_time[order],
        gpu_event=np.concatenate([*(part.gpu_event for part in parts), arrivals.event])[order],
        is_end=np.concatenate([*(part.is_end for part in parts), np.zeros(many, bool)])[order],
        thread=np.concatenate([*(part.thread for part in parts), gone])[order],
        source=new_source,
        weight_us=all_weight[order],
        edge=all_edge[order],
        shifts_us=whole.shift_us,
    )
    return tightened(moments), rank_of[order]


class _Arrivals:
    """The chain nodes of all matched collectives."""

    def __init__(
        self, whole: Job, nodes: tuple[list[Ints], list[Ints]], base: int, many: int
    ) -> None:
        self.time = np.zeros(many)
        self.source = np.full((many, SLOTS), NONE, np.int64)
        self.weight = np.zeros((many, SLOTS))
        self.edge = np.full((many, SLOTS), WAIT_EDGE, np.int8)
        self.rank = np.zeros(many, np.int64)
        self.event = np.full(many, NONE, np.int64)
        self._ends: list[tuple[int, int]] = []
        starts, ends = nodes
        node = 0
        for one in whole.matched:
            order = np.argsort(one.start_us, kind="stable").tolist()
            for turn, index in enumerate(order):
                rank, event = one.positions[index], one.events[index]
                self.time[node] = one.start_us[index]
                self.rank[node] = rank
                self.source[node, 0] = starts[rank][event]
                if turn:
                    self.source[node, 1] = base + node - 1
                node += 1
            last = base + node - 1
            for rank, event in zip(one.positions, one.events, strict=True):
                self._ends.append((int(ends[rank][event]), last))

    def redirect(
        self, time: np.ndarray, source: Ints, weight: np.ndarray, edge: np.ndarray
    ) -> None:
        """A collective's end waits for the last arrival; its own start alone asks nothing of it."""
        for end, last in self._ends:
            transfer = float(time[end] - time[last])
            if transfer < 0:
                continue
            weight[end, 0] = min(weight[end, 0], transfer)
            source[end, 1], weight[end, 1], edge[end, 1] = last, transfer, RUN_EDGE


def _nodes_of_events(
    traces: Sequence[Trace], parts: Sequence[Moments], offsets: Ints
) -> tuple[list[Ints], list[Ints]]:
    """For each rank the nodes of its GPU events' starts and ends."""
    starts, ends = [], []
    for trace, part, offset in zip(traces, parts, offsets, strict=False):
        of_start = np.full(len(trace.gpu), NONE, np.int64)
        of_end = of_start.copy()
        first = np.flatnonzero((part.gpu_event >= 0) & ~part.is_end)
        last = np.flatnonzero((part.gpu_event >= 0) & part.is_end)
        of_start[part.gpu_event[first]] = first + offset
        of_end[part.gpu_event[last]] = last + offset
        starts.append(of_start)
        ends.append(of_end)
    return starts, ends
