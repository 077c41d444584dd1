"""Host and GPU time by operator, by input shape, by call site: `operator_times(trace)`.

GPU work belongs to the innermost operator that was open on the launching thread when it was
launched (`self`), and to every operator around that one (`total`). An operator inside one of the
same name counts once in the total. Shapes and call sites are there when the trace was loaded with
`details`.
"""

from __future__ import annotations

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Trace
from ridgeline.trace.host_calls import (
    best_frame,
    innermost_at,
    launch_rows,
    linked_operators,
    user_frames,
)
from ridgeline.trace.roofline.operator_flops import flops_of
from ridgeline.trace.windows import RankRecord, host_window

GROUPINGS = ("name", "shape", "line")


class OperatorTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All calls of one operator (with one input shape, from one line)."""

    name: str
    shapes: str | None
    """Input dimensions, when grouped by shape."""
    line: str | None
    """`file.py:line function`, when grouped by line."""
    count: int
    host_total_us: float
    host_self_us: float
    """Without the operators inside it."""
    gpu_total_us: float
    """The time of the GPU work launched inside it."""
    gpu_self_us: float
    """The time of the GPU work launched by it and no operator inside it."""
    flops: float | None
    """Multiplications and additions by the shapes; None where they are not known."""
    flops_per_second: float | None
    """Over its GPU time."""


class RankOperators(RankRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operators of one rank."""

    window: str
    by: str
    count: int
    gpu_us: float
    """The time of all GPU work in the trace."""
    gpu_outside_us: float
    """The time of GPU work whose launch lies in no operator, or outside the trace."""
    operators: list[OperatorTime]


def operator_times(
    trace: Trace, window: str = "trace", *, by: str = "name", top: int = 30
) -> RankOperators:
    """Operators by GPU time, then by host time; `by` is `name`, `shape` or `line`."""
    if by not in GROUPINGS:
        raise InputError(f"--by {by}: there is {', '.join(GROUPINGS)}")
    tree = operator_tree(trace)
    rows, parent = tree
    host = trace.host
    gpu_self, outside = _gpu_self(trace, rows)
    gpu_total = _inclusive(parent, gpu_self)
    host_self = host.duration_us[rows].copy()
    inner = parent != ABSENT
    np.subtract.at(host_self, parent[inner], host.duration_us[rows][inner])
    keys = _keys(trace, rows, by)
    low, high = host_window(trace, window)
    chosen = (host.start_us[rows] >= low) & (host.start_us[rows] < high)
    outermost = _outermost_of_name(host.name[rows].astype(np.int64), parent)
    groups: dict[tuple[int, int, str | None], list[int]] = {}
    for place in np.flatnonzero(chosen).tolist():
        groups.setdefault(keys[place], []).append(place)
    found = []
    for (name, shape, line), members in groups.items():
        places = np.array(members)
        once = places[outermost[places]]
        gpu_us, flops = float(gpu_total[once].sum()), _flops(trace, name, rows[places])
        found.append(
            OperatorTime(
                name=trace.names[name],
                shapes=trace.shapes[shape] if shape != ABSENT else None,
                line=line,
                count=len(places),
                host_total_us=float(host.duration_us[rows[once]].sum()),
                host_self_us=float(host_self[places].sum()),
                gpu_total_us=gpu_us,
                gpu_self_us=float(gpu_self[places].sum()),
                flops=flops,
                flops_per_second=flops / gpu_us * 1e6 if flops and gpu_us > 0 else None,
            )
        )
    found.sort(key=lambda use: (-use.gpu_self_us, -use.host_self_us))
    return RankOperators(
        file=trace.file,
        rank=trace.rank,
        window=window,
        by=by,
        count=int(chosen.sum()),
        gpu_us=float(trace.gpu.duration_us.sum()),
        gpu_outside_us=outside,
        operators=found[:top],
    )


def operator_tree(trace: Trace) -> tuple[Ints, Ints]:
    """Rows of the operators, and for each the place of the one around it (ABSENT: none)."""
    return trace.derived("operator_tree", _operator_tree)


def _operator_tree(trace: Trace) -> tuple[Ints, Ints]:
    host = trace.host
    rows = np.flatnonzero(host.category == Category.OPERATOR)
    order = np.lexsort((-host.duration_us[rows], host.start_us[rows], host.thread[rows]))
    rows = rows[order]
    starts, ends = host.start_us[rows].tolist(), host.end_us[rows].tolist()
    threads = host.thread[rows].tolist()
    parent = np.full(len(rows), ABSENT, np.int64)
    stack: list[int] = []
    for place, start in enumerate(starts):
        while stack and (threads[stack[-1]] != threads[place] or ends[stack[-1]] <= start):
            stack.pop()
        if stack:
            parent[place] = stack[-1]
        stack.append(place)
    return rows, parent


def _gpu_self(trace: Trace, rows: Ints) -> tuple[Floats, float]:
    """GPU time by the innermost operator at the launch, and what has none."""
    gpu, owner = trace.gpu, operator_of_gpu(trace, rows)
    known = owner != ABSENT
    times = np.bincount(owner[known], weights=gpu.duration_us[known], minlength=len(rows))
    return times.astype(np.float64), float(gpu.duration_us[~known].sum())


def operator_of_gpu(trace: Trace, rows: Ints) -> Ints:
    """The place in `rows` of the innermost operator at each GPU event's launch, or ABSENT."""
    host, gpu = trace.host, trace.gpu
    calls = launch_rows(trace)
    launched = np.flatnonzero(calls != ABSENT)
    inside = innermost_at(
        trace,
        host.thread[calls[launched]].astype(np.int64),
        host.start_us[calls[launched]],
        host.category == Category.OPERATOR,
    )
    place_of = np.full(len(host), ABSENT, np.int64)
    place_of[rows] = np.arange(len(rows))
    owner = np.full(len(gpu), ABSENT, np.int64)
    owner[launched[inside != ABSENT]] = place_of[inside[inside != ABSENT]]
    rest = np.flatnonzero(owner == ABSENT)
    linked = linked_operators(trace, rest)
    owner[rest[linked != ABSENT]] = place_of[linked[linked != ABSENT]]
    return owner


def _inclusive(parent: Ints, own: Floats) -> Floats:
    """Sums over the operators inside, which come after the one around them."""
    total = own.tolist()
    above = parent.tolist()
    for place in range(len(total) - 1, -1, -1):
        if above[place] != ABSENT:
            total[above[place]] += total[place]
    return np.array(total, np.float64)


def _outermost_of_name(names: Ints, parent: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Is no operator of the same name around it?"""
    above, named = parent.tolist(), names.tolist()
    outermost = np.ones(len(above), bool)
    for place in range(len(above)):
        around = above[place]
        while around != ABSENT:
            if named[around] == named[place]:
                outermost[place] = False
                break
            around = above[around]
    return outermost


def _keys(trace: Trace, rows: Ints, by: str) -> list[tuple[int, int, str | None]]:
    host = trace.host
    names = host.name[rows].tolist()
    if by == "shape":
        return [(name, shape, None) for name, shape in zip(names, host.shape[rows].tolist(),
                                                           strict=True)]  # fmt: skip
    if by == "line":
        return [(name, ABSENT, line) for name, line in zip(names, _lines(trace, rows), strict=True)]
    return [(name, ABSENT, None) for name in names]


def _lines(trace: Trace, rows: Ints) -> list[str | None]:
    host = trace.host
    frames = innermost_at(
        trace, host.thread[rows].astype(np.int64), host.start_us[rows], user_frames(trace)
    )
    stacks = {number: best_frame(text.split(";")[::-1]) for number, text in enumerate(trace.stacks)}
    lines = []
    for row, frame in zip(rows.tolist(), frames.tolist(), strict=True):
        if frame != ABSENT:
            lines.append(best_frame([trace.names[host.name[frame]]]))
        else:
            lines.append(stacks.get(int(host.stack[row])))
    return lines


def _flops(trace: Trace, name: int, rows: Ints) -> float | None:
    shapes, counts = np.unique(trace.host.shape[rows], return_counts=True)
    total, known = 0.0, False
    for shape, count in zip(shapes.tolist(), counts.tolist(), strict=True):
        flops = flops_of(trace.names[name], trace.shapes[shape]) if shape != ABSENT else None
        if flops is not None:
            total, known = total + flops * count, True
    return total if known else None
