"""Time by the ranges that a user named, `record_function` and NVTX: `annotation_times(trace)`.

GPU work belongs to the innermost range that was open on the launching thread at the launch, and to
every range around that one. Autograd runs backward on threads of its own, where no range of the
user's is open: its work belongs to the range that is open on the thread with most ranges, which is
the one that called it. A range inside one of the same name counts once in sums by name.

Of each call of a range the GPU's span is from the first start to the last end of what was launched
inside (what Kineto writes as `gpu_user_annotation`), and the GPU is idle inside it while nothing at
all runs on it. FLOPs are those of matmuls, convolutions and attention by their shapes; over the
GPU's span and the device's dense 16-bit peak they are the MFU of the range, where nothing is
recomputed.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Mask, Trace
from ridgeline.trace.host_calls import innermost_at, launch_rows, names_matching
from ridgeline.trace.intervals import covered, union
from ridgeline.trace.nesting import (
    Nesting,
    Paths,
    gathered,
    merged_paths,
    nested,
    outermost_of_name,
    own_time,
    tree_order,
)
from ridgeline.trace.profiler_steps import numbered_turn
from ridgeline.trace.roofline.operator_flops import CONVOLUTIONS, counted_rows, flops_of
from ridgeline.trace.sorting import distinct
from ridgeline.trace.time.backward import in_backward
from ridgeline.trace.windows import RankRecord, host_window, views

_STEP = re.compile(r"^(ProfilerStep\s*#)\d+")
_OLD = re.compile(r"^(ProfilerStep\s*#|Optimizer\.\w+#|enumerate\(DataLoader\)#)")
"""Ranges of torch's own that torch 1.8 writes among operators, where they can be told by name."""
NO_RANGES = (
    "no named range in the trace; name parts of the program with torch.profiler.record_function, or"
    " with torch.cuda.nvtx.range under Nsight Systems"
)


class RangeUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All calls of one named range (in one place, when told as a tree)."""

    name: str
    """The name; numbers of steps and iterations are left out: `ProfilerStep#*`, `iter *`."""
    path: str
    """The names from the outermost range to this one, with `/` between them; the name alone when
    told by name."""
    depth: int
    """How many ranges are around it; 0 when told by name."""
    count: int
    host_us: float
    """Host time of all calls, with the ranges inside."""
    host_self_us: float
    """Host time without the ranges inside."""
    host_mean_us: float
    gpu_us: float
    """The time of the GPU work that was launched inside; streams side by side count twice."""
    gpu_self_us: float
    """GPU time without that of the ranges inside."""
    gpu_share: float
    """Its part of the time of all GPU work in the window."""
    gpu_span_us: float
    """From the first start to the last end of that work, call by call; where calls overlap on the
    GPU, their time counts once."""
    gpu_idle_us: float
    """The part of the spans in which nothing ran on the GPU."""
    flops: float | None
    """Work of the matmuls, convolutions and attention inside; None where shapes do not tell."""
    flops_utilization: float | None
    """FLOPs over the GPU's spans and the device's dense 16-bit peak; None for an unknown device."""


class RankRanges(RankRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The named ranges of one rank."""

    window: str
    gpu_us: float
    """The time of all GPU work that was launched in the window."""
    gpu_outside_us: float
    """What of it was launched in no range."""
    count: int
    """How many different names, or places in the tree, there are."""
    ranges: list[RangeUse]
    note: str | None
    """Why there is nothing, where there is nothing."""


def annotation_times(
    trace: Trace, window: str = "trace", *, tree: bool = False, top: int = 40
) -> RankRanges:
    """The `top` ranges with most GPU time, by name or, as a tree, by the ranges around them."""
    host = trace.host
    low, high = host_window(trace, window)
    old = (host.category == Category.OPERATOR) & names_matching(trace, _OLD)[host.name]
    named = (host.category == Category.ANNOTATION) | old
    chosen = named & (host.start_us >= low) & (host.start_us < high)
    ranges = _Ranges(trace, chosen)
    calls = launch_rows(trace)
    launched = np.flatnonzero(calls != ABSENT)
    moments = host.start_us[calls[launched]]
    launched = launched[(moments >= low) & (moments < high)]
    times = trace.gpu.duration_us[launched]
    total = float(times.sum()) if window == "steps" else float(trace.gpu.duration_us.sum())
    owner = ranges.around(calls[launched])
    figures = ranges.figures(launched, owner)
    uses = _uses(trace, ranges, figures, total, tree=tree)
    return RankRanges(
        file=trace.file,
        rank=trace.rank,
        window=window,
        gpu_us=total,
        gpu_outside_us=max(0.0, total - float(times[owner != ABSENT].sum())),
        count=len(uses),
        ranges=uses[:top],
        note=None if uses else NO_RANGES,
    )


class _Ranges:
    """The ranges of a window, nested, with those of autograd's threads inside their caller's."""

    def __init__(self, trace: Trace, chosen: Mask) -> None:
        self.trace = trace
        self.chosen = chosen
        self.own_thread = nested(trace, chosen)
        rows = self.own_thread.rows
        threads = trace.host.thread[rows]
        counts = np.bincount(threads) if len(rows) else np.zeros(1)
        self.caller = int(np.argmax(counts))
        parent = self.own_thread.parent.copy()
        roots = np.flatnonzero((parent == ABSENT) & (threads != self.caller))
        parent[roots] = self._around_backward(rows[roots])
        self.nest = Nesting(rows, parent)

    def around(self, rows: Ints) -> Ints:
        """Places in `nest.rows` of the innermost range around each host event, or ABSENT."""
        host = self.trace.host
        threads = host.thread[rows].astype(np.int64)
        found = innermost_at(self.trace, threads, host.start_us[rows], self.chosen)
        places = self.own_thread.places(found, len(host))
        rest = np.flatnonzero(places == ABSENT)
        places[rest] = self._around_backward(rows[rest])
        return places

    def _around_backward(self, rows: Ints) -> Ints:
        """The caller's range around events of autograd's backward; ABSENT for other events."""
        trace, host = self.trace, self.trace.host
        threads, moments = host.thread[rows].astype(np.int64), host.start_us[rows]
        inside = innermost_at(trace, threads, moments, in_backward(trace)) != ABSENT
        caller = np.where(inside, self.caller, ABSENT)
        found = innermost_at(trace, caller, moments, self.chosen & (host.thread == self.caller))
        return self.own_thread.places(np.where(inside, found, ABSENT), len(host))

    def figures(self, launched: Ints, owner: Ints) -> dict[str, Floats]:
        """What each call of a range holds: times, spans and FLOPs."""
        trace, host, rows = self.trace, self.trace.host, self.nest.rows
        gpu, parent, size = trace.gpu, self.nest.parent, len(self.nest.rows)
        known = owner != ABSENT
        events, owner = launched[known], owner[known]
        own = np.bincount(owner, weights=gpu.duration_us[events], minlength=size)
        first, last = np.full(size, np.inf), np.full(size, -np.inf)
        np.minimum.at(first, owner, gpu.start_us[events])
        np.maximum.at(last, owner, gpu.ends_of(events))
        first, last = gathered(parent, first, np.minimum), gathered(parent, last, np.maximum)
        lengths = host.duration_us[rows]
        return {
            "host": lengths,
            "host_self": own_time(self.own_thread.parent, lengths),
            "gpu": gathered(parent, own.astype(np.float64), np.add),
            "gpu_self": own.astype(np.float64),
            "first": first,
            "last": last,
            "flops": gathered(parent, self._flops(size), np.add),
        }

    def _flops(self, size: int) -> Floats:
        """FLOPs directly inside each range; NaN where a call's work is not told."""
        rows = counted_rows(self.trace)
        places = self.around(rows)
        rows, places = rows[places != ABSENT], places[places != ABSENT]
        found = np.bincount(places, weights=_flops_of_rows(self.trace, rows), minlength=size)
        return found.astype(np.float64)


def _flops_of_rows(trace: Trace, rows: Ints) -> Floats:
    """FLOPs of operators; 0 without a formula for their shapes, NaN for an unknown convolution."""
    host = trace.host
    many = len(trace.shapes) + 1
    keys = host.name[rows].astype(np.int64) * many + host.shape[rows] + 1
    used = distinct(keys)
    values = np.zeros(len(used))
    for place, key in enumerate(used.tolist()):
        name, shape = divmod(key, many)
        flops = flops_of(trace.names[name], trace.shapes[shape - 1]) if shape else None
        unknown = np.nan if trace.names[name] in CONVOLUTIONS or not shape else 0.0
        values[place] = unknown if flops is None else flops
    return values[np.searchsorted(used, keys)]


def _uses(
    trace: Trace, ranges: _Ranges, figures: dict[str, Floats], total: float, *, tree: bool
) -> list[RangeUse]:
    rows, parent = ranges.nest
    if not len(rows):
        return []
    names, called = _without_numbers(trace, trace.host.name[rows].astype(np.int64))
    if tree:
        paths = merged_paths(parent, names)
    else:
        used = distinct(names)
        nothing = np.full(len(used), ABSENT, np.int64)
        paths = Paths(np.searchsorted(used, names), nothing, used)
    # Among ranges of one name inside each other the outermost has all of it.
    whole = np.ones(len(rows), bool) if tree else outermost_of_name(parent, names)
    figures |= _spans(trace, paths.node, figures.pop("first"), figures.pop("last"), whole)
    sums = {
        field: np.bincount(
            paths.node,
            weights=values if field.endswith("_self") else np.where(whole, values, 0.0),
            minlength=len(paths.parent),
        )
        for field, values in figures.items()
    }
    counts = np.bincount(paths.node, minlength=len(paths.parent))
    peak = _peak_flops_per_second(trace) if trace.shapes else None
    found = []
    path: dict[int, str] = {}
    depth: dict[int, int] = {}
    for node in tree_order(paths.parent, sums["gpu"] + 1e-9 * sums["host"]):
        above, name = int(paths.parent[node]), called[int(paths.name[node])]
        path[node] = f"{path[above]}/{name}" if above in path else name
        depth[node] = depth[above] + 1 if above in depth else 0
        mine = {field: float(values[node]) for field, values in sums.items()}
        flops = mine["flops"] if trace.shapes and np.isfinite(mine["flops"]) else None
        seconds = mine["span"] * 1e-6
        found.append(
            RangeUse(
                name=name,
                path=path[node],
                depth=depth[node],
                count=int(counts[node]),
                host_us=mine["host"],
                host_self_us=mine["host_self"],
                host_mean_us=mine["host"] / int(counts[node]),
                gpu_us=mine["gpu"],
                gpu_self_us=mine["gpu_self"],
                gpu_share=mine["gpu"] / total if total > 0 else 0.0,
                gpu_span_us=mine["span"],
                gpu_idle_us=mine["idle"],
                flops=flops,
                flops_utilization=flops / seconds / peak if flops and peak and seconds else None,
            )
        )
    return found


def _spans(trace: Trace, node: Ints, first: Floats, last: Floats, whole: Mask) -> dict[str, Floats]:
    """GPU span of each call after those of its node before it, and the idle time in it."""
    gpu = trace.gpu
    span, idle = np.zeros(len(node)), np.zeros(len(node))
    calls = np.flatnonzero(whole & (last > first))
    if not len(calls):
        return {"span": span, "idle": idle}
    calls = calls[np.lexsort((first[calls], node[calls]))]
    # One clock per node, so that what came before is never another node's.
    apart = node[calls] * (float(gpu.end_us.max()) + 1.0)
    reached = np.maximum.accumulate(last[calls] + apart)
    begun = first[calls]
    begun[1:] = np.maximum(begun[1:], (reached[:-1] - apart[1:]))
    ended = np.maximum(last[calls], begun)
    busy = covered(union(gpu.start_us, gpu.end_us), begun, ended)
    span[calls] = ended - begun
    idle[calls] = np.maximum(ended - begun - busy, 0.0)
    return {"span": span, "idle": idle}


def _without_numbers(trace: Trace, names: Ints) -> tuple[Ints, list[str]]:
    """Numbers of the names without those of steps and iterations, and what they stand for."""
    used = distinct(names)
    numbers: dict[str, int] = {}
    mapped = np.zeros(len(used), np.int64)
    for place, index in enumerate(used.tolist()):
        name = trace.names[index]
        step, turn = _STEP.match(name), numbered_turn(name)
        plain = f"{step[1]}*" if step else f"{turn[0]}*" if turn else name
        mapped[place] = numbers.setdefault(plain, len(numbers))
    return mapped[np.searchsorted(used, names)], list(numbers)


def _peak_flops_per_second(trace: Trace) -> float | None:
    """The dense 16-bit peak of all GPUs that worked, where the catalogue knows each."""
    peaks = []
    for view in views(trace):
        device = view.catalogued_device
        peaks.append(None if device is None else device.peaks.get(device.training_dtype))
    known = [peak for peak in peaks if peak]
    return sum(known) if known and len(known) == len(peaks) else None
