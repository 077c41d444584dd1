"""Host and GPU time by operator, by input shape, by call site: `operator_times(trace)`.

GPU work belongs to the innermost operator that was open on the launching thread when it was
launched (`self`), and to every operator around that one (`total`). An operator inside one of the
same name counts once in the total. Shapes and call sites are there when the trace was loaded with
`details`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

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
from ridgeline.trace.sorting import each
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
    keys, told = _keys(trace, rows, by)
    low, high = host_window(trace, window)
    chosen = (host.start_us[rows] >= low) & (host.start_us[rows] < high)
    outermost = _outermost_of_name(host.name[rows].astype(np.int64), parent)
    found = []
    for places in _members(keys, np.flatnonzero(chosen)):
        name, shape, line = told(int(places[0]))
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
    starts = host.start_us[rows]
    ends = starts + host.duration_us[rows]
    parent = array("q")
    on, stack = ABSENT, list[tuple[float, int]]()
    spans = zip(each(host.thread[rows]), each(starts), each(ends), strict=True)
    for place, (thread, start, end) in enumerate(spans):
        if thread != on:
            on, stack = thread, []
        while stack and stack[-1][0] <= start:
            stack.pop()
        parent.append(stack[-1][1] if stack else ABSENT)
        stack.append((end, place))
    return rows, np.array(parent, np.int64)


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
    summed = own.astype(np.float64)
    total, above = summed.data, parent.data
    for place in range(len(total) - 1, -1, -1):
        if above[place] != ABSENT:
            total[above[place]] += total[place]
    return summed


def _outermost_of_name(names: Ints, parent: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Is no operator of the same name around it?"""
    above, named = parent.data, names.data
    outermost = np.ones(len(above), bool)
    for place in range(len(above)):
        around = above[place]
        while around != ABSENT:
            if named[around] == named[place]:
                outermost[place] = False
                break
            around = above[around]
    return outermost


Key = tuple[int, int, str | None]
"""Name, shape and line; ABSENT or None where operators are not told apart by it."""


def _keys(trace: Trace, rows: Ints, by: str) -> tuple[Ints, Callable[[int], Key]]:
    """A number for each operator, the same for those of one group; and the key of a place."""
    host = trace.host
    names = host.name[rows].astype(np.int64)
    if by == "shape":
        shapes = host.shape[rows].astype(np.int64)
        numbers = names * (len(trace.shapes) + 1) + shapes + 1
        return numbers, lambda place: (int(names[place]), int(shapes[place]), None)
    if by == "line":
        known: dict[str | None, int] = {}
        own = [known.setdefault(line, len(known)) for line in _lines(trace, rows)]
        lines, texts = np.array(own, np.int64), list(known)
        numbers = names * (len(known) + 1) + lines
        return numbers, lambda place: (int(names[place]), ABSENT, texts[lines[place]])
    return names, lambda place: (int(names[place]), ABSENT, None)


def _members(keys: Ints, places: Ints) -> list[Ints]:
    """The places of each group, in the order in which groups begin."""
    order = np.argsort(keys[places], kind="stable")
    ordered = keys[places[order]]
    heads = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    groups = np.split(places[order], heads) if len(places) else []
    return sorted(groups, key=lambda own: int(own[0]))


def _lines(trace: Trace, rows: Ints) -> Iterator[str | None]:
    host = trace.host
    frames = innermost_at(
        trace, host.thread[rows].astype(np.int64), host.start_us[rows], user_frames(trace)
    )
    stacks = {number: best_frame(text.split(";")[::-1]) for number, text in enumerate(trace.stacks)}
    for row, frame in zip(each(rows), each(frames), strict=True):
        if frame != ABSENT:
            yield best_frame([trace.names[host.name[frame]]])
        else:
            yield stacks.get(int(host.stack[row]))


def _flops(trace: Trace, name: int, rows: Ints) -> float | None:
    shapes, counts = np.unique(trace.host.shape[rows], return_counts=True)
    total, known = 0.0, False
    for shape, count in zip(shapes.tolist(), counts.tolist(), strict=True):
        flops = flops_of(trace.names[name], trace.shapes[shape]) if shape != ABSENT else None
        if flops is not None:
            total, known = total + flops * count, True
    return total if known else None
