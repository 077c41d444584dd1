"""What the trace rules need of one GPU of one rank, small enough to travel home from a worker.

`trace_facts(trace)` asks the questions of `ridgeline.trace` and keeps the figures.

    idle    the GPU's idle time by whose it is (`trace/time/idle_causes.py`)
    saved   what the window would lose without one cause (`critical_path/counterfactual.py`)
    floor   of communication: as if each collective took as long as the fastest one of its name and
            size. What is above that is waiting, as far as one rank can tell.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from ridgeline import quantity
from ridgeline.diagnose.longest_gaps import (
    LongestGap,
    edge_gap,
    longest_gap,
    longest_stalls,
)
from ridgeline.trace.columns import Floats, Kind, Mask, Trace
from ridgeline.trace.communication.accumulation import SyncedPasses, synced_passes
from ridgeline.trace.communication.buckets import UnbucketedAllReduces, unbucketed
from ridgeline.trace.communication.matching import RankCollectives, rank_collectives
from ridgeline.trace.critical_path.counterfactual import CURES, Counterfactual
from ridgeline.trace.critical_path.job_counterfactual import ALL_WORK, COMPUTE, RankGraphs
from ridgeline.trace.host_calls import names_matching
from ridgeline.trace.intervals import clipped, intersection, measure
from ridgeline.trace.kernel_names import (
    MATRIX,
    is_communication,
    kernel_classes,
    on_tensor_cores,
)
from ridgeline.trace.loaders import loader_workers
from ridgeline.trace.recorded import Recorded, seen_by_torch, what_was_recorded
from ridgeline.trace.sorting import distinct
from ridgeline.trace.start_up_calls import (
    ALLOCATOR,
    allocates_throughout,
    gives_memory_back,
    starts_by_name,
    starts_unseen,
)
from ridgeline.trace.time.headroom import Headroom, SlowKernel, headroom
from ridgeline.trace.time.host_activities import (
    HOST_PARTS,
    launching_threads,
    over_a_link,
    parts_of_thread,
)
from ridgeline.trace.time.idle_causes import IDLE_PARTS, IdleCauses, idle_causes
from ridgeline.trace.time.kernels import RankKernels, kernel_use
from ridgeline.trace.time.launch import RankLaunches, launches
from ridgeline.trace.time.offload import Offload, offload
from ridgeline.trace.time.summary import RankSummary, summarize, summarize_view
from ridgeline.trace.time.sync import HostWait, sync_points
from ridgeline.trace.time.uneven import UnevenKernels, uneven_kernels
from ridgeline.trace.windows import View, judged_window, middle_of, views
from ridgeline.trace.working_span import beside_us

_SINGLE_PRECISION = re.compile(r"sgemm|ffma|scudnn|_simt_sgemm|engine<float|f32f32_f32f32")
_SMALL_US = 5.0
_LONG_US = 1000.0
_MOST_EVENTS = 30_000
"""What a cure saves is looked up in so many GPU events of a window, and scaled."""
_ALIKE = 0.02
_FEW_RANKS, _JOINED_SHARE = 16, 0.03
"""The graphs of so many ranks are joined, under cures of what holds so much of a window."""
_NEXT = "host"
"""What holds a rank up once the late one, for which it waits now, is on time."""
_OF_FP32 = 0.5
"""What matmuls in plain fp32 would lose for all that is known: TF32 has twice the rate and more."""
_FILLED, _OF_NOTE = 0.5, 0.1
"""Where kernels fill so much of a window, and the GPU waits for the host for so much, either may be
what it takes as long as."""
_LEAST_SHARE = 0.01
"""A cause that holds less of the window is not asked what it is worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """The facts of one GPU of one rank; the defaults are those of a rank without GPU work."""

    summary: RankSummary
    collectives: RankCollectives
    host_span_us: float
    """From the first host event to the last."""
    idle: dict[str, float] = field(default_factory=lambda: dict.fromkeys(IDLE_PARTS, 0.0))
    """Part of the idle time → µs; the parts add up to it."""
    idle_in_long_gaps: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(HOST_PARTS, 0.0)
    )
    """The host's parts of it in stretches that no single dispatch explains."""
    fetched_us: float = 0.0
    """The host's part of it while it works on much data that it has waited for."""
    saved: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CURES, 0.0))
    """Cure → by how much it shortens the window, in µs."""
    saved_without_work_us: float | None = None
    """By how much the window is shorter where the GPU takes no time; None where kernels do not fill
    most of it, or the GPU hardly waits for the host."""
    graphs: RankGraphs | None = None
    """The window under each cure, of one rank of a job of few."""
    seen_by_torch: bool = True
    starts_unseen: bool = False
    """Is some of the start time of which no call tells what it is?"""
    """Does the trace hold operators or frames of Python, of which ranges are parts?"""
    start_up_calls: tuple[str, ...] = ()
    allocates_throughout: bool = False
    gives_memory_back: bool = False
    """Does its allocator free what it keeps in the midst of the run?"""
    allocator_calls: int = 0
    """Calls that allocate or free memory of the GPU."""
    long_gaps_us: float = 0.0
    """Idle time in gaps of a millisecond and more."""
    longest_gap: LongestGap | None = None
    edge_gap: LongestGap | None = None
    """The longer of the gaps before the first and after the last event of the GPU."""
    kernels: RankKernels | None = None
    small_us: float = 0.0
    """In kernels under 5 µs."""
    matrix_us: float = 0.0
    """In products of matrices whose kernels' names say whether they run on tensor cores."""
    single_precision_us: float = 0.0
    """The part of `matrix_us` whose names say fp32 without tensor cores."""
    slow_kernels: tuple[SlowKernel, ...] = ()
    below_us: dict[str, float] = field(default_factory=dict)
    """Time of kernels by the roof that they stay below: `compute`, `memory`, `unknown`."""
    told_by_shapes_us: float = 0.0
    """The part of `below_us` that shapes tell, and not the kernels' classes."""
    launches: RankLaunches | None = None
    sync_gap_us: float = 0.0
    """GPU idle around the ends of the host's waits."""
    sync_blocked_us: float = 0.0
    """Time of the host in its waits for the GPU."""
    sync_points: tuple[HostWait, ...] = ()
    stalls: tuple[LongestGap, ...] = ()
    """The longest gaps in which work was pending for no reason that the trace shows."""
    communication_floor_us: float | None = None
    """None where the trace does not say how large the messages are."""
    link_us: float = 0.0
    """Copies to and from the host, or other GPUs, while no kernel ran."""
    unbucketed: UnbucketedAllReduces | None = None
    synced: SyncedPasses | None = None
    """Passes of a step that each send their gradients."""
    offload: Offload | None = None
    loader_workers: bool | None = None
    """Are there worker processes already? None without a loader in the trace."""
    copies_us: dict[str, float] = field(default_factory=dict)
    """Name of the copy → time."""
    uneven: UnevenKernels | None = None
    """What kernels take beyond what the same ones usually take."""
    beside_us: float = 0.0
    """Recorded before and after the window of a program without steps."""
    recorded: Recorded | None = None
    """Signs of GPU work, of a rank without any."""

    @property
    def window_us(self) -> float:
        """Length of the window."""
        return self.summary.window_us

    @property
    def idle_of_host_us(self) -> float:
        """Idle time in which the host had not asked for the next event yet."""
        return sum(self.idle[part] for part in HOST_PARTS)


def trace_facts(trace: Trace, window: str = "auto") -> list[RankFacts]:
    """One set of facts per GPU of the trace; one without GPU figures where nothing ran on a GPU.

    The window `auto` is that of host and GPU together where it is clearly longer than the GPU's.
    """
    window = judged_window(trace) if window == "auto" else window
    found = [_of_view(view, place) for place, view in enumerate(views(trace, window))]
    if found:
        return found
    summary = summarize(trace, window)[0]
    return [
        RankFacts(
            summary=summary,
            collectives=rank_collectives(trace),
            host_span_us=_host_span(trace),
            recorded=what_was_recorded(trace),
        )
    ]


def facts_beside(trace: Trace, window: str) -> list[RankFacts]:
    """The facts for a verdict that stands beside tables of a window.

    Where no other window than `trace` is asked for, the verdict has its own: `auto`.
    """
    return trace_facts(trace, "auto" if window == "trace" else window)


def summary_and_facts(
    trace: Trace, window: str = "trace"
) -> tuple[list[RankSummary], list[RankFacts]]:
    """The figures of a window, and what its verdict is made of."""
    facts = facts_beside(trace, window)
    if all(fact.summary.window == window for fact in facts):
        return [fact.summary for fact in facts], facts
    return summarize(trace, window), facts


def _of_view(view: View, place: int) -> RankFacts:
    trace = view.trace
    causes = idle_causes(view)
    durations = view.durations_us()
    classes = kernel_classes(trace)[view.rows]
    kernel = trace.gpu.kind[view.rows] == Kind.KERNEL
    matrix = kernel & np.isin(classes, MATRIX)
    names = trace.gpu.name[view.rows]
    silent = [n for n in distinct(names[matrix]) if on_tensor_cores(trace.names[n]) is None]
    matrix &= ~np.isin(names, silent)
    single = np.array([bool(_SINGLE_PRECISION.search(name)) for name in trace.names] or [False])
    plain = single[trace.gpu.name[view.rows]]
    waits = sync_points(trace, view.window)
    room = headroom(view)
    summary = summarize_view(view)
    precision = room.precision_share
    if not precision.any():  # without shapes or a known device
        precision = np.zeros(len(trace.gpu))
        precision[view.rows[matrix & plain]] = _OF_FP32
    uneven = uneven_kernels(view)
    saved, graphs = _saved(view, causes, room, summary, precision, uneven)
    allocating = trace.host.is_call & names_matching(trace, ALLOCATOR)[trace.host.name]
    return RankFacts(
        summary=summary,
        collectives=rank_collectives(trace),
        host_span_us=_host_span(trace),
        idle=causes.us,
        idle_in_long_gaps=causes.long_us,
        fetched_us=causes.fetched_us,
        saved={cure: saved[cure] for cure in CURES},
        saved_without_work_us=saved.get(ALL_WORK),
        graphs=graphs,
        seen_by_torch=seen_by_torch(trace),
        starts_unseen=starts_unseen(trace),
        start_up_calls=_start_up_calls(trace),
        allocates_throughout=allocates_throughout(trace),
        gives_memory_back=gives_memory_back(trace),
        allocator_calls=int(allocating.sum()),
        long_gaps_us=float(causes.gaps.length_us[causes.gaps.length_us >= _LONG_US].sum()),
        longest_gap=longest_gap(view, causes),
        edge_gap=edge_gap(view, causes),
        kernels=kernel_use(trace, view.window, top=5, roofline=False)[place],
        small_us=float(durations[kernel & (durations < _SMALL_US)].sum()),
        matrix_us=float(durations[matrix].sum()),
        single_precision_us=float(durations[matrix & plain].sum()),
        slow_kernels=room.kernels,
        below_us={
            "compute": room.compute_us,
            "memory": room.memory_us,
            "unknown": room.unknown_us,
        },
        told_by_shapes_us=room.told_us,
        launches=launches(trace, view.window)[place],
        sync_gap_us=waits.gpu_gap_us,
        sync_blocked_us=waits.host_us,
        sync_points=tuple(waits.points[:5]),
        stalls=longest_stalls(view, causes),
        communication_floor_us=_floor(view),
        unbucketed=unbucketed(view),
        synced=synced_passes(view),
        offload=offload(view),
        loader_workers=loader_workers(trace),
        link_us=_link_us(view),
        uneven=uneven,
        beside_us=beside_us(trace, view.start_us, view.end_us),
        copies_us=_copies(view, over_a_link(trace)[view.rows]),
    )


def _host_span(trace: Trace) -> float:
    host = trace.host
    if not len(host):
        return 0.0
    return float((host.start_us + host.duration_us).max() - host.start_us.min())


def _saved(
    view: View,
    causes: IdleCauses,
    room: Headroom,
    summary: RankSummary,
    precision: Floats,
    uneven: UnevenKernels | None,
) -> tuple[dict[str, float], RankGraphs | None]:
    """What the window would lose without each cause that holds some of it.

    `precision` is the share of each GPU event that other arithmetic would take away.
    """
    lower = view.window_us if room.precision_share.any() else 0.0
    held = {
        **{part: causes.us[part] for part in ("loader", "start_up", "allocator", "python")},
        "host": causes.host_us,
        "synchronise": causes.host_us,
        "communication": summary.communication_exposed_us,
        "copy": _link_us(view) + causes.us["copy"],
        "dependency": causes.us["dependency"],
        "stall": causes.us["stall"],
        "kernels": lower + sum(kernel.headroom_us for kernel in room.kernels),
        "precision": view.window_us if precision.any() else 0.0,
        "uneven": uneven.excess_us if uneven else 0.0,
    }
    excess = uneven.share if uneven else np.zeros(len(precision))
    # A long gap may be the only one of its kind: then the middle does not stand for the whole.
    alike = causes.gaps.length_us.max(initial=0.0) < _ALIKE * view.window_us
    part, rows = middle_of(view, _MOST_EVENTS if alike else len(view.rows))
    scale = view.window_us / part.window_us if part.window_us > 0 else 1.0
    faster = np.maximum(np.maximum(room.share, room.precision_share) - excess, 0.0)
    works = (~is_communication(part.trace)).astype(float)
    asked = Counterfactual(
        part,
        pending=_pending(causes if part is view else idle_causes(part)),
        kernels={
            "kernels": faster[rows],
            "precision": precision[rows],
            "uneven": excess[rows],
            COMPUTE: works,
            ALL_WORK: np.ones(len(works)),
        },
    )
    least = _LEAST_SHARE * view.window_us
    saved = {cure: scale * asked.saved_us(cure) if held[cure] >= least else 0.0 for cure in CURES}
    if (
        summary.compute_us >= _FILLED * view.window_us
        and causes.host_us >= _OF_NOTE * view.window_us
    ):
        saved[ALL_WORK] = scale * asked.saved_us(ALL_WORK)
    joined = part is view and 1 < (view.trace.world_size or 2) <= _FEW_RANKS
    if joined:  # what the host does while its GPU stands in a collective holds it up next
        held = {cure: max(us, _of_host_us(view, cure)) for cure, us in held.items()}
    of_note = [cure for cure in CURES
               if cure == _NEXT or held[cure] >= _JOINED_SHARE * view.window_us]  # fmt: skip
    if rank_collectives(part.trace).messages:
        of_note.append(COMPUTE)
    return saved, asked.graphs(of_note) if joined else None


def _of_host_us(view: View, part: str) -> float:
    """The most that one of the threads that launch spends in a part of the host's time."""
    if part not in HOST_PARTS:
        return 0.0
    spent = (
        parts_of_thread(view.trace, thread)[part]
        for thread in launching_threads(view.trace).tolist()
    )
    return max((measure(clipped(us, view.start_us, view.end_us)) for us in spent), default=0.0)


def _pending(causes: IdleCauses) -> dict[str, dict[int, float]]:
    """GPU event → how long it was pending, by whether the trace shows for what."""
    found: dict[str, dict[int, float]] = {"dependency": {}, "stall": {}}
    for place in np.flatnonzero(causes.pending_us > 0).tolist():
        name = "stall" if causes.stalled[place] else "dependency"
        found[name][int(causes.gaps.after[place])] = float(causes.pending_us[place])
    return found


def _start_up_calls(trace: Trace) -> tuple[str, ...]:
    longest = starts_by_name(trace)[:4]
    return tuple(f"{name} {quantity.microseconds(us)}" for name, us in longest)


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


def _link_us(view: View) -> float:
    copies = view.set_of(over_a_link(view.trace))
    kernels = view.set_of(view.trace.gpu.kind == Kind.KERNEL)
    return measure(copies) - measure(intersection(copies, kernels))


def _copies(view: View, is_copy: Mask) -> dict[str, float]:
    trace = view.trace
    totals: dict[str, float] = defaultdict(float)
    rows, durations = view.rows[is_copy], view.durations_us()[is_copy]
    for name, us in zip(trace.gpu.name[rows].tolist(), durations.tolist(), strict=True):
        totals[trace.names[name]] += us
    return dict(sorted(totals.items(), key=lambda item: -item[1])[:4])
