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
from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Narrow, Trace
from ridgeline.trace.host_calls import (
    best_frame,
    innermost_at,
    linked_operators,
    operators_at_launch,
    user_frames,
)
from ridgeline.trace.nesting import Nesting, inclusive, nested, outermost_of_name
from ridgeline.trace.roofline.operator_flops import flops_of
from ridgeline.trace.sorting import counted, distinct
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
    host = trace.host
    rows, parent = operator_tree(trace)
    gpu_self, outside = _gpu_self(trace, rows)
    gpu_total = inclusive(parent, gpu_self)
    lengths = host.duration_us[rows]
    inner = parent != ABSENT
    host_self = lengths - np.bincount(parent[inner], weights=lengths[inner], minlength=len(rows))
    low, high = host_window(trace, window)
    chosen = (host.start_us[rows] >= low) & (host.start_us[rows] < high)
    outermost = outermost_of_name(parent, host.name[rows].astype(np.int64))
    asked = np.flatnonzero(chosen)
    lines, line_of = _lines(trace, rows[asked]) if by == "line" else ([None], None)
    detail = host.shape[rows[asked]] + 1 if by == "shape" else line_of
    found = []
    for members in _groups(host.name[rows[asked]], detail):
        places, line = asked[members], 0 if line_of is None else int(line_of[members[0]])
        name, once = int(host.name[rows[places[0]]]), places[outermost[places]]
        gpu_us, flops = float(gpu_total[once].sum()), _flops(trace, name, rows[places])
        shape = int(host.shape[rows[places[0]]]) if by == "shape" else ABSENT
        found.append(
            OperatorTime(
                name=trace.names[name],
                shapes=trace.shapes[shape] if shape != ABSENT else None,
                line=lines[line],
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


def operator_tree(trace: Trace) -> Nesting:
    """Rows of the operators, and for each the place of the one around it."""
    return trace.derived("operator_tree", lambda t: nested(t, t.host.category == Category.OPERATOR))


def _gpu_self(trace: Trace, rows: Ints) -> tuple[Floats, float]:
    """GPU time by the innermost operator at the launch, and what has none."""
    gpu, owner = trace.gpu, operator_of_gpu(trace, rows)
    known = owner != ABSENT
    times = np.bincount(owner[known], weights=gpu.duration_us[known], minlength=len(rows))
    return times.astype(np.float64), float(gpu.duration_us[~known].sum())


def operator_of_gpu(trace: Trace, rows: Ints) -> Ints:
    """The place in `rows` of the innermost operator at each GPU event's launch, or ABSENT."""
    host, gpu = trace.host, trace.gpu
    inside = operators_at_launch(trace)
    place_of = np.full(len(host), ABSENT, np.int64)
    place_of[rows] = np.arange(len(rows))
    owner = np.full(len(gpu), ABSENT, np.int64)
    owner[inside != ABSENT] = place_of[inside[inside != ABSENT]]
    rest = np.flatnonzero(owner == ABSENT)
    linked = linked_operators(trace, rest)
    owner[rest[linked != ABSENT]] = place_of[linked[linked != ABSENT]]
    return owner


def _groups(names: Narrow, detail: Narrow | Ints | None) -> list[Ints]:
    """Places with the same name and detail, by the first of each."""
    keys = names.astype(np.int64)
    if detail is not None and len(detail):
        keys = keys * (int(detail.max()) + 1) + detail
    order = np.argsort(keys, kind="stable")
    heads = np.flatnonzero(np.append(True, keys[order][1:] != keys[order][:-1])[: len(keys)])
    parts = np.split(order, heads[1:])
    return [parts[number] for number in np.argsort(order[heads]).tolist()]


def _lines(trace: Trace, rows: Ints) -> tuple[list[str | None], Ints]:
    """The lines of the user's code that call operators, and which of them calls each."""
    host = trace.host
    frames = innermost_at(
        trace, host.thread[rows].astype(np.int64), host.start_us[rows], user_frames(trace)
    )
    # Frames by their names, then the stacks that old traces write, then neither.
    sources = np.where(frames != ABSENT, host.name[frames], len(trace.names) + host.stack[rows])
    sources[(frames == ABSENT) & (host.stack[rows] == ABSENT)] = -1
    used = distinct(sources)
    numbers: dict[str | None, int] = {}
    line_of = [numbers.setdefault(_line(trace, one), len(numbers)) for one in used.tolist()]
    return list(numbers), np.array(line_of, np.int64)[np.searchsorted(used, sources)]


def _line(trace: Trace, source: int) -> str | None:
    if source < 0:
        return None
    if source < len(trace.names):
        return best_frame([trace.names[source]])
    return best_frame(trace.stacks[source - len(trace.names)].split(";")[::-1])


def _flops(trace: Trace, name: int, rows: Ints) -> float | None:
    shapes, counts = counted(trace.host.shape[rows])
    total, known = 0.0, False
    for shape, count in zip(shapes.tolist(), counts.tolist(), strict=True):
        flops = flops_of(trace.names[name], trace.shapes[shape]) if shape != ABSENT else None
        if flops is not None:
            total, known = total + flops * count, True
    return total if known else None
