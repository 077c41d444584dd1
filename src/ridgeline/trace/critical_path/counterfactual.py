"""What a window would lose in length if one thing were gone: `Counterfactual(view).saved_us(cure)`.

The graph of `dependencies.py` keeps everything else as it was: launches in order, streams in order,
the waits between them. A cure takes time out of edges, or takes edges away, and the window ends
when its last moment does then. So a loader that works while the GPU is busy saves nothing, and of
two waits that hide each other neither saves anything alone. A batch that worker processes make is
there when it is, whatever the host or the GPU gain.

    loader, start_up,     the host's time in them, on threads that launch; without an allocator
    allocator, python     that asks the driver nobody waits for the GPU to free memory either
    host                  all of the host's time but what other cures stand for
    synchronise           the host no longer waits for the GPU: neither blocked nor asking
    communication, copy   their time on the GPU, and what the host does to start them
    dependency, stall     work that was launched runs at once, where the caller says that it did not
    kernels, precision,   a share of each kernel's time that the caller names
    uneven

What is asked of a long trace costs what its events cost; `windows.middle_of` gives a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Ints, Kind, Mask, Trace
from ridgeline.trace.critical_path.dependencies import dependencies
from ridgeline.trace.critical_path.job_counterfactual import ON_THE_GPU, UNCHANGED, RankGraphs
from ridgeline.trace.critical_path.moments import (
    FREE_EDGE,
    HOST_EDGE,
    LAUNCH_EDGE,
    RUN_EDGE,
    STREAM_EDGE,
    SYNC_EDGE,
    WAIT_EDGE,
    Moments,
    earlier_us,
)
from ridgeline.trace.critical_path.rank_path import ShortenedGraph, shortened_graph
from ridgeline.trace.held_calls import blocking_copies
from ridgeline.trace.host_calls import launch_rows, names_matching
from ridgeline.trace.intervals import covered, measure, union
from ridgeline.trace.kernel_names import is_communication, short_name
from ridgeline.trace.loaders import worker_waits
from ridgeline.trace.sorting import TICK_US, among, distinct
from ridgeline.trace.start_up_calls import first_calls
from ridgeline.trace.time.host_activities import (
    HOST_PARTS,
    busy_time,
    launching_threads,
    over_a_link,
    parts_of_thread,
)
from ridgeline.trace.waits import NONE
from ridgeline.trace.windows import View

CURES = ("loader", "start_up", "allocator", "python", "host", "synchronise", "communication",
         "copy", "dependency", "stall", "kernels", "precision", "uneven")  # fmt: skip
_OF_THE_HOST = ("runtime", "operator", "python", "untraced")
"""Parts of the host's time that a faster host would not need."""
_PENDING = (LAUNCH_EDGE, STREAM_EDGE, WAIT_EDGE)
_COLLECTIVE_CALLS = re.compile(r"^(c10d::|nccl:|rccl:|gloo:|record_param_comms|_c10d_functional)")


class Counterfactual:
    """One window of one GPU, asked again and again what would be without something."""

    def __init__(
        self,
        view: View,
        *,
        pending: Mapping[str, Mapping[int, float]] | None = None,
        kernels: Mapping[str, Floats] | None = None,
    ) -> None:
        """Lay the graph of the window out.

        Args:
            view: the window.
            pending: `dependency` or `stall` → row of a GPU event → how long it stood launched with
                nothing running (µs).
            kernels: `kernels` or `precision` → the share of each GPU event of the trace that is
                taken away, from 0 to 1.
        """
        self.view, self.trace = view, view.trace
        self.pending, self.kernels = pending or {}, kernels or {}
        moments = dependencies(view.trace)
        inside = moments.time_us >= view.start_us - TICK_US
        inside &= moments.time_us <= view.end_us + TICK_US
        rows = np.flatnonzero(inside)
        self.start_us, self.end_us = view.start_us, view.end_us
        self.free_us = view.window_us - measure(view.set_of())
        """Time without any work on the GPU: a cure of the host cannot save more, whatever the
        graph says of kernels on streams of their own, because they share the GPU."""
        self._lay_out(moments, rows)

    def _lay_out(self, moments: Moments, rows: Ints) -> None:
        """Take the nodes of the window; an edge from before it hangs on its beginning."""
        place = np.full(len(moments) + 1, NONE, np.int64)
        place[rows] = np.arange(len(rows))
        self.time_us = moments.time_us[rows]
        self.event, self.is_end = moments.gpu_event[rows], moments.is_end[rows]
        self.thread, self.edge = moments.thread[rows], moments.edge[rows]
        outside = moments.source[rows]
        self.has_edge = outside != NONE
        self.source = place[outside]
        self.weight_us = moments.weight_us[rows]
        since = np.where(self.has_edge, moments.time_us[outside], self.start_us)
        self.since_us = np.maximum(since, self.start_us)
        slack = np.maximum(self.time_us[:, None] - (since + self.weight_us), 0.0)
        self.slack_us = np.where(self.has_edge, slack, np.inf)
        if len(rows):
            binding = moments.binding[rows]
            self.slack_us[np.arange(len(rows)), binding] = np.where(
                self.has_edge[np.arange(len(rows)), binding], 0.0, np.inf
            )
        # The first point of a thread comes after what the thread did since the window began.
        first = (self.event == NONE) & ~self.has_edge.any(axis=1)
        self.slack_us[first, 0], self.edge[first, 0] = 0.0, HOST_EDGE
        self.first = np.flatnonzero(first)
        self._follow_the_host()
        self._share_out_host()

    def _follow_the_host(self) -> None:
        """Let what nobody launched come as long as it did after the host's last point before it.

        Pages of managed memory move when somebody touches them, who would do so earlier, too.
        """
        nobodys = (self.event != NONE) & ~self.is_end & ~self.has_edge.any(axis=1)
        points = np.flatnonzero(self.event == NONE)
        node = np.flatnonzero(nobodys)
        last = np.searchsorted(points, node) - 1
        node, last = node[last >= 0], last[last >= 0]
        self.source[node, 0], self.slack_us[node, 0] = points[last], 0.0
        self.edge[node, 0] = WAIT_EDGE

    def _share_out_host(self) -> None:
        """What the host did along each of its edges, by part."""
        on_host = (self.edge[:, 0] == HOST_EDGE) & np.isfinite(self.slack_us[:, 0])
        on_host &= (self.event == NONE) & (self.weight_us[:, 0] > 0)
        on_host[self.first] = True
        self.host_nodes = np.flatnonzero(on_host)
        since, until = self.since_us[self.host_nodes, 0], self.time_us[self.host_nodes]
        self.thread[self.first] = [self._busiest(int(node)) for node in self.first]
        self.host_us = _by_part(self.trace, self.thread[self.host_nodes], since, until)
        self._wait_for_workers()

    def _wait_for_workers(self) -> None:
        """Hold what follows a wait for a batch where it is: its workers do not get quicker."""
        host, free = self.trace.host, ~np.isfinite(self.slack_us[self.host_nodes, 1])
        waits = worker_waits(self.trace)
        held, since = [], []
        for thread in distinct(host.thread[waits]).tolist():
            ends = np.sort(host.ends_of(waits[host.thread[waits] == thread]))
            nodes = self.host_nodes[free & (self.thread[self.host_nodes] == thread)]
            last = np.searchsorted(ends, self.time_us[nodes], side="right") - 1
            after = (last >= 0) & (ends[last] > self.since_us[nodes, 0])
            held.append(nodes[after])
            since.append(ends[last[after]])
        self.held = np.concatenate([np.zeros(0, np.int64), *held])
        self.slack_us[self.held, 1] = 0.0
        after = np.concatenate([np.zeros(0), *since])
        self.after_us = _by_part(self.trace, self.thread[self.held], after, self.time_us[self.held])

    def _busiest(self, node: int) -> int:
        """The thread that did most before a first point: it is what the point came after."""
        since, until = np.array([self.start_us]), np.array([self.time_us[node]])
        threads: list[int] = [int(self.thread[node]), *launching_threads(self.trace).tolist()]
        return max(
            threads,
            key=lambda thread: float(covered(busy_time(self.trace, thread), since, until)[0]),
        )

    def saved_us(self, cure: str) -> float:
        """By how much the window gets shorter with one of `CURES` (µs)."""
        if not len(self.time_us):
            return 0.0
        earlier = earlier_us(self.source, self._margin_us(cure))
        found = self._length_us(np.zeros(len(earlier))) - self._length_us(earlier, cure)
        if cure not in ON_THE_GPU:
            found = min(found, self.free_us)
        return max(0.0, found)

    def graphs(self, cures: Sequence[str]) -> RankGraphs | None:
        """What is left of the window under each cure, for a job whose ranks wait for each other.

        None without collectives in it.
        """
        talks = np.flatnonzero(is_communication(self.trace))
        starts, ends = (np.full(len(self.trace.gpu), NONE, np.int64) for _ in range(2))
        at = np.flatnonzero(self.event != NONE)
        begins, stops = at[~self.is_end[at]], at[self.is_end[at]]
        starts[self.event[begins]], ends[self.event[stops]] = begins, stops
        rows = talks[(starts[talks] != NONE) & (ends[talks] != NONE)]
        if not len(rows):
            return None
        named = {
            cure: self._shortened(cure, starts[rows], ends[rows]) for cure in (UNCHANGED, *cures)
        }
        length = self.time_us[ends[rows]] - self.time_us[starts[rows]]
        names = [short_name(self.trace.names[name]) for name in self.trace.gpu.name[rows].tolist()]
        return RankGraphs(
            rows=rows, names=tuple(names), start_us=self.time_us[starts[rows]], length_us=length,
            free_us=self.free_us, graphs=named,
        )  # fmt: skip

    def _shortened(self, cure: str, starts: Ints, ends: Ints) -> ShortenedGraph:
        latest = np.where(self._ends(), self.time_us, -np.inf)
        for node, last in self._ends_of_host(cure):
            latest[node] = max(latest[node], last)
        return shortened_graph(
            source=self.source,
            margin_us=self._margin_us(cure),
            latest_us=latest,
            starts=starts,
            ends=ends,
            reduction=np.full(len(starts), 1.0 if cure == "communication" else 0.0),
            choices=np.isfinite(self.slack_us).sum(axis=1) > 1,
        )

    def _margin_us(self, cure: str) -> Floats:
        """What each edge has to spare and is shortened by; infinite where there is none."""
        shorter, gone = np.zeros(self.slack_us.shape), np.zeros(self.slack_us.shape, bool)
        self._apply(cure, shorter, gone)
        found: Floats = np.where(gone, np.inf, self.slack_us + shorter)
        return found

    def _ends(self) -> Mask:
        """The moments of which the last is the window's end."""
        return self.is_end if self.is_end.any() else np.ones(len(self.is_end), bool)

    def _length_us(self, earlier: Floats, cure: str = "") -> float:
        """The last moment of what is left, from the start of the window."""
        ends = self._ends()
        last = float((self.time_us[ends] - earlier[ends]).max())
        for node, end in self._ends_of_host(cure):
            last = max(last, end - float(earlier[node]))
        return last - self.start_us

    def _ends_of_host(self, cure: str) -> Iterator[tuple[int, float]]:
        """When the threads that launch come to their end, or to that of the window.

        The last node of each, and its thread's end without what a cure takes away after it.
        """
        host = self.trace.host
        if self.view.window != "span":
            return
        for thread in distinct(self.thread[self.thread != NONE]).tolist():
            node = int(np.flatnonzero(self.thread == thread)[-1])
            since = float(self.time_us[node])
            end = min(float(host.ends_of(host.thread == thread).max()), self.end_us)
            left = max(0.0, end - since)
            by = _by_part(
                self.trace, np.array([thread]), np.array([since]), np.array([since + left])
            )
            # A wait that the window cuts off is as long as the GPU makes it.
            left -= sum(float(by[part][0]) for part in {*_parts_gone(cure), "synchronise"})
            yield node, since + left

    # -- cures ----------------------------------------------------------------------------------

    def _apply(self, cure: str, shorter: Floats, gone: Mask) -> None:
        for part in _parts_gone(cure):
            shorter[self.host_nodes, 0] += self.host_us[part]
            shorter[self.held, 1] += self.after_us[part]
        gone[self.held, 1] = cure == "loader"
        if cure == "synchronise":
            self._take_waits_away(shorter, gone, copies=False)
        elif cure == "allocator":
            freed = self.edge == FREE_EDGE
            shorter[freed] += self.weight_us[freed]
            gone[:, 1:] |= freed[:, 1:]
        elif cure == "copy":
            self._take_waits_away(shorter, gone, copies=True)
            self._shorten_events(shorter, over_a_link(self.trace))
        elif cure == "communication":
            self._shorten_events(shorter, is_communication(self.trace))
            self._shorten_collective_calls(shorter)
        elif cure in self.kernels:
            self._shorten_events(shorter, self.kernels[cure])
            if cure == "uneven":  # who has the GPU in between holds up what is about to start, too
                self._run_at_once(shorter, self.pending.get("stall", {}))
        elif cure == "start_up":
            self._shorten_first_launches(shorter)
        elif cure in self.pending:
            self._run_at_once(shorter, self.pending[cure])

    def _shorten_collective_calls(self, shorter: Floats) -> None:
        """Take the host's time in operators of torch.distributed away."""
        trace, host = self.trace, self.trace.host
        talks = names_matching(trace, _COLLECTIVE_CALLS)[host.name]
        for thread in distinct(self.thread[self.host_nodes]).tolist():
            rows = np.flatnonzero(talks & (host.thread == thread))
            nodes = self.host_nodes[self.thread[self.host_nodes] == thread]
            if len(rows) and len(nodes):
                spans = union(host.start_us[rows], host.ends_of(rows))
                shorter[nodes, 0] += covered(spans, self.since_us[nodes, 0], self.time_us[nodes])

    def _take_waits_away(self, shorter: Floats, gone: Mask, *, copies: bool) -> None:
        """Let calls that wait take no time, whatever the GPU does."""
        waits = self._waits(copies=copies)
        gone |= waits
        called = waits.any(axis=1)
        shorter[called, 0] += self.weight_us[called, 0]

    def _waits(self, *, copies: bool) -> Mask:
        """Edges from the end of GPU work to the return of a call that waits for it.

        Those of copies to the device and between devices, or all others.
        """
        found: Mask = (self.edge == SYNC_EDGE) & (self.source != NONE)
        found[:, 0] = False
        node = np.flatnonzero(found.any(axis=1))
        waited = self.event[self.source[node, 1]]
        kind, names = self.trace.gpu.kind[waited], self.trace.gpu.name[waited]
        reads = np.array(["DtoH" in name or "Device -> Host" in name for name in self.trace.names])
        is_copy = (kind == Kind.MEMCPY) & ~reads[names] & self._in_own_call(waited)
        found[node[is_copy != copies]] = False
        return found

    def _in_own_call(self, events: Ints) -> Mask:
        calls = launch_rows(self.trace)[events]
        found: Mask = among(calls, blocking_copies(self.trace)) & (calls != ABSENT)
        return found

    def _shorten_events(self, shorter: Floats, share: Mask | Floats) -> None:
        node, slot = np.nonzero(self.edge == RUN_EDGE)
        shorter[node, slot] += share[self.event[node]] * self.weight_us[node, slot]

    def _shorten_first_launches(self, shorter: Floats) -> None:
        """Take what a first launch takes in its own call out of the way to the GPU as well."""
        node, slot = np.nonzero(self.edge == LAUNCH_EDGE)
        calls = launch_rows(self.trace)[self.event[node]]
        first = among(calls, first_calls(self.trace)) & (calls != ABSENT)
        inside = np.minimum(self.trace.host.duration_us[calls[first]],
                            self.weight_us[node[first], slot[first]])  # fmt: skip
        shorter[node[first], slot[first]] += inside

    def _run_at_once(self, shorter: Floats, pending_us: Mapping[int, float]) -> None:
        waited = np.zeros(len(self.trace.gpu))
        waited[list(pending_us)] = list(pending_us.values())
        node, slot = np.nonzero(np.isin(self.edge, _PENDING) & (self.event != NONE)[:, None])
        shorter[node, slot] += np.minimum(waited[self.event[node]], self.weight_us[node, slot])


def _parts_gone(cure: str) -> tuple[str, ...]:
    """The parts of the host's time that a cure takes away."""
    if cure == "host":
        return _OF_THE_HOST
    return (cure,) if cure in HOST_PARTS else ()


def _by_part(trace: Trace, threads: Ints, since: Floats, until: Floats) -> dict[str, Floats]:
    """The time of each stretch of a thread by what the thread did; the parts add up to it."""
    found = {part: np.zeros(len(since)) for part in HOST_PARTS}
    for thread in distinct(threads).tolist():
        here = threads == thread
        low, high = since[here], until[here]
        left = high - low
        for part, times in parts_of_thread(trace, thread).items():
            found[part][here] = covered(times, low, high)
            left = left - found[part][here]
        found["untraced"][here] = np.maximum(left, 0.0)
    return found
