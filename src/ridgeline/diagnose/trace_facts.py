"""What the trace rules need of one GPU of one rank, small enough to travel home from a worker.

`trace_facts(trace)` asks the questions of `ridgeline.trace` and keeps the figures.

    pending     of host wait: from the end of a launch to the start of its work. The host had asked;
                something on the device held it back.
    start-up    of host wait: calls of a millisecond or more that neither wait nor copy, made while
                the GPU had nothing to do: allocation, loading of modules, creation of streams
    floor       of communication: as if each collective took as long as the fastest one of its
                name and size. What is above that is waiting, as far as one rank can tell.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from ridgeline import quantity
from ridgeline.trace.columns import ABSENT, Kind, Mask, Trace
from ridgeline.trace.communication.buckets import UnbucketedAllReduces, unbucketed
from ridgeline.trace.communication.matching import RankCollectives, rank_collectives
from ridgeline.trace.host_calls import launch_rows
from ridgeline.trace.intervals import covered, union
from ridgeline.trace.kernel_names import (
    KERNEL_CLASSES,
    MATRIX,
    kernel_classes,
    on_tensor_cores,
)
from ridgeline.trace.loaders import loader_workers
from ridgeline.trace.sorting import distinct
from ridgeline.trace.time.idle import LAUNCH_GAP_US, Gaps, Wait, device_gaps, host_wait_by, idle_gap
from ridgeline.trace.time.kernels import RankKernels, kernel_use
from ridgeline.trace.time.launch import RankLaunches, launches
from ridgeline.trace.time.offload import Offload, offload
from ridgeline.trace.time.summary import RankSummary, summarize, summarize_view
from ridgeline.trace.time.sync import HostWait, sync_points
from ridgeline.trace.windows import View, views

_NO_START_UP = re.compile(r"Synchronize|Memcpy|Memset|Wait|GraphLaunch")
_START_UP_US = 1000.0
_SINGLE_PRECISION = re.compile(r"sgemm|ffma|scudnn|_simt_sgemm|engine<float|f32f32_f32f32")
_SMALL_US = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestGap:
    """The longest time in which the GPU did nothing."""

    us: float
    cause: str
    call: str | None
    line: str | None
    pending: bool
    """Was the work that ended it already launched for most of the gap?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """The facts of one GPU of one rank; the defaults are those of a rank without GPU work."""

    summary: RankSummary
    collectives: RankCollectives
    host_span_us: float
    """From the first host event to the last."""
    host_wait_by: dict[str, float] = field(default_factory=dict)
    pending_us: float = 0.0
    start_up_us: float = 0.0
    start_up_calls: tuple[str, ...] = ()
    longest_gap: LongestGap | None = None
    kernels: RankKernels | None = None
    small_us: float = 0.0
    """In kernels under 5 µs."""
    matrix_us: float = 0.0
    """In products of matrices whose kernels' names say whether they run on tensor cores."""
    single_precision_us: float = 0.0
    """The part of `matrix_us` whose names say fp32 without tensor cores."""
    launches: RankLaunches | None = None
    sync_gap_us: float = 0.0
    """GPU idle around the ends of the host's waits."""
    sync_blocked_us: float = 0.0
    """Time of the host in those waits."""
    sync_points: tuple[HostWait, ...] = ()
    communication_floor_us: float | None = None
    """None where the trace does not say how large the messages are."""
    unbucketed: UnbucketedAllReduces | None = None
    offload: Offload | None = None
    loader_workers: bool | None = None
    """Are there worker processes already? None without a loader in the trace."""
    copies_us: dict[str, float] = field(default_factory=dict)
    """Name of the copy → time."""

    @property
    def window_us(self) -> float:
        """Length of the window."""
        return self.summary.window_us

    @property
    def loader_us(self) -> float:
        """The host wait in which the launching thread was in its loader."""
        return self.host_wait_by.get("loader", 0.0)

    @property
    def sync_us(self) -> float:
        """The host wait, without the loader, that goes away when the host no longer waits.

        A host that never waits runs ahead by the time that it was blocked, and no further: a gap
        after a wait that is longer than that is a host that is slow, not one that waits. Nothing
        on a launch-bound run, whose queue is empty anyway; nothing where it is the lesser part.
        """
        if self.launches is None or self.launches.queue_empty:
            return 0.0
        rest = self._other_host_wait_us
        found = max(0.0, min(self.sync_gap_us - self.loader_us, self.sync_blocked_us, rest))
        return found if found >= 0.5 * rest else 0.0

    @property
    def host_us(self) -> float:
        """The host wait that loader, pending launches and waits of the host do not explain."""
        return self._other_host_wait_us - self.sync_us

    @property
    def _other_host_wait_us(self) -> float:
        return max(0.0, self.summary.host_wait_us - self.loader_us - self.pending_us)


def trace_facts(trace: Trace, window: str = "trace") -> list[RankFacts]:
    """One set of facts per GPU of the trace; one without GPU figures where nothing ran on a GPU."""
    found = [_of_view(view, place) for place, view in enumerate(views(trace, window))]
    if found:
        return found
    summary = summarize(trace, window)[0]
    return [
        RankFacts(
            summary=summary,
            collectives=rank_collectives(trace),
            host_span_us=_host_span(trace),
        )
    ]


def _of_view(view: View, place: int) -> RankFacts:
    trace = view.trace
    found = device_gaps(view)
    durations = view.durations_us()
    classes = kernel_classes(trace)[view.rows]
    kernel = trace.gpu.kind[view.rows] == Kind.KERNEL
    matrix = kernel & np.isin(classes, MATRIX)
    names = trace.gpu.name[view.rows]
    silent = [n for n in distinct(names[matrix]) if on_tensor_cores(trace.names[n]) is None]
    matrix &= ~np.isin(names, silent)
    single = np.array([bool(_SINGLE_PRECISION.search(name)) for name in trace.names] or [False])
    plain = single[trace.gpu.name[view.rows]]
    start_up, calls = _start_up(view, found)
    waits = sync_points(trace, view.window)
    return RankFacts(
        summary=summarize_view(view),
        collectives=rank_collectives(trace),
        host_span_us=_host_span(trace),
        host_wait_by=host_wait_by(view, found),
        pending_us=_pending(view, found),
        start_up_us=start_up,
        start_up_calls=calls,
        longest_gap=_longest(view, found),
        kernels=kernel_use(trace, view.window, top=5, roofline=False)[place],
        small_us=float(durations[kernel & (durations < _SMALL_US)].sum()),
        matrix_us=float(durations[matrix].sum()),
        single_precision_us=float(durations[matrix & plain].sum()),
        launches=launches(trace, view.window)[place],
        sync_gap_us=min(waits.gpu_gap_us, found.total_us(Wait.HOST)),
        sync_blocked_us=waits.host_us,
        sync_points=tuple(waits.points[:5]),
        communication_floor_us=_floor(view),
        unbucketed=unbucketed(view),
        offload=offload(view),
        loader_workers=loader_workers(trace),
        copies_us=_copies(view, classes == KERNEL_CLASSES.index("copy")),
    )


def _host_span(trace: Trace) -> float:
    host = trace.host
    if not len(host):
        return 0.0
    return float((host.start_us + host.duration_us).max() - host.start_us.min())


def _launch_ends(view: View, found: Gaps) -> np.ndarray:
    """When the launch of the work after each gap returned; NaN where there is none."""
    host, ends = view.trace.host, np.full(len(found.start_us), np.nan)
    has = np.flatnonzero(found.after >= 0)
    rows = launch_rows(view.trace)[found.after[has]]
    known = rows != ABSENT
    ends[has[known]] = host.start_us[rows[known]] + host.duration_us[rows[known]]
    return ends


def _pending(view: View, found: Gaps) -> float:
    waited = found.end_us - np.maximum(_launch_ends(view, found), found.start_us)
    long = (found.cause == Wait.HOST) & (waited >= LAUNCH_GAP_US)
    return float(waited[long].sum())


def _start_up(view: View, found: Gaps) -> tuple[float, tuple[str, ...]]:
    trace, host = view.trace, view.trace.host
    waits = np.array([bool(_NO_START_UP.search(name)) for name in trace.names] or [False])
    long: Mask = host.is_call & (host.duration_us >= _START_UP_US)
    rows = np.flatnonzero(long)
    rows = rows[~waits[host.name[rows]]]
    idle = found.cause == Wait.HOST
    if not len(rows) or not idle.any():
        return 0.0, ()
    spans = union(host.start_us[rows], host.start_us[rows] + host.duration_us[rows])
    total = float(covered(spans, found.start_us[idle], found.end_us[idle]).sum())
    inside = host.start_us[rows] + host.duration_us[rows] > found.start_us[idle][0]
    inside &= host.start_us[rows] < found.end_us[idle][-1]
    rows = rows[inside]
    rows = rows[np.argsort(-host.duration_us[rows])][:4]
    calls = [
        f"{trace.names[host.name[row]]} {quantity.microseconds(host.duration_us[row])}"
        for row in rows
    ]
    return total, tuple(calls)


def _longest(view: View, found: Gaps) -> LongestGap | None:
    if not len(found.start_us):
        return None
    longest = int(np.argmax(found.length_us))
    worst = idle_gap(view.trace, found, longest)
    launched = _launch_ends(view, found)[longest]
    waited = float(found.end_us[longest]) - max(launched, float(found.start_us[longest]))
    return LongestGap(
        us=worst.length_us,
        cause=worst.cause,
        call=worst.host_call,
        line=worst.line,
        pending=bool(waited > 0.5 * worst.length_us),
    )


def _floor(view: View) -> float | None:
    """Communication if every collective took as long as the fastest one like it."""
    talks = rank_collectives(view.trace)
    if not talks.facts or None in talks.facts:
        return None
    groups: dict[object, list[float]] = defaultdict(list)
    for name, fact, start, end in zip(
        talks.names, talks.facts, talks.start_us.tolist(), talks.end_us.tolist(), strict=True
    ):
        if view.start_us <= start < view.end_us:
            size = None if fact is None else (fact.elements_in, fact.elements_out, fact.dtype)
            groups[name, size].append(end - start)
    return sum(min(times) * len(times) for times in groups.values())


def _copies(view: View, is_copy: Mask) -> dict[str, float]:
    trace = view.trace
    totals: dict[str, float] = defaultdict(float)
    rows, durations = view.rows[is_copy], view.durations_us()[is_copy]
    for name, us in zip(trace.gpu.name[rows].tolist(), durations.tolist(), strict=True):
        totals[trace.names[name]] += us
    return dict(sorted(totals.items(), key=lambda item: -item[1])[:4])
