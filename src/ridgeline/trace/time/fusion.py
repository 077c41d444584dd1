"""Chains of small kernels that one kernel could do, and at most what that would save.

A chain is two kernels or more, one right after the other on one stream, that work element by
element, normalise, reduce or copy on the device. Where the shapes of their operators are known, a
kernel continues a chain only when one of its inputs has the size of what the one before it wrote.

Fused, the tensor between two kernels is neither written nor read: that is what a fusion saves. What
remains to be moved takes at least its bytes over the memory's bandwidth, and one kernel takes at
least as long as the longest that it replaces, so

    worth ≤ time of the chain − max(longest kernel, bytes that remain / bandwidth)

an upper bound: it takes the tensors between for ones that nobody else reads. Without shapes, or on
a device that the catalogue does not know, the second limit is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Mask, Trace
from ridgeline.trace.host_calls import innermost_at, launch_rows
from ridgeline.trace.kernel_names import KERNEL_CLASSES, KernelClass, kernel_classes
from ridgeline.trace.roofline.operator_bytes import bytes_of
from ridgeline.trace.roofline.operator_inputs import operator_inputs
from ridgeline.trace.sorting import distinct
from ridgeline.trace.windows import View

FUSIBLE = (KernelClass.ELEMENTWISE, KernelClass.NORM, KernelClass.REDUCTION, KernelClass.COPY)
LONGEST_CHAIN = 16
"""Kernels of the longest chain: generated kernels seldom hold more, and longer chains are cut."""


class FusionCandidate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One chain of kernels, wherever it occurs."""

    kernels: list[str]
    """Their names, in order."""
    classes: list[str]
    operators: list[str | None]
    """The operators that launched one of them; None where the trace does not tell."""
    count: int
    total_us: float
    launches_saved: int
    """So many launches fewer, over all of them."""
    moved_bytes: float | None
    """What they move now, at least; None where the shapes are not known."""
    saved_bytes: float | None
    """Tensors between the kernels, written once and read once."""
    worth_us: float
    """At most this is saved, over all of them."""
    bound: str
    """What limits the worth: `longest kernel` or `memory`."""
    first_us: float
    """When the first of them begins."""


class _Traffic(NamedTuple):
    """What kernels move, one entry per kernel; NaN where it is not known."""

    operator: Ints
    """Row of the innermost operator at the launch, or ABSENT."""
    moved_bytes: Floats
    shared: Floats
    """Size of what the kernel writes, where the next one has an input of that size; else 0."""


def fusion_candidates(view: View, rows: Ints, us: Floats, follows: Mask) -> list[FusionCandidate]:
    """Chains among kernels that stand in the order of their streams, the most worthwhile first.

    `us` are the kernels' times; `follows` says which are in one stretch with the one after them.
    """
    classes = kernel_classes(view.trace)[rows]
    fusible = np.isin(classes, FUSIBLE)
    traffic = _traffic(view.trace, rows, fusible)
    linked = np.zeros(len(rows), bool)
    linked[:-1] = follows[:-1] & fusible[:-1] & fusible[1:]
    # Known sizes that do not fit end a chain; unknown ones do not.
    linked &= ~(traffic.shared == 0.0)
    starts, lengths = _runs(linked)
    if not len(starts):
        return []
    groups: dict[int, list[int]] = {}
    for number, key in enumerate(
        _hashes(view.trace.gpu.name[rows].astype(np.int64), starts, lengths).tolist()
    ):
        groups.setdefault(key, []).append(number)
    found = [
        _candidate(view, rows, us, traffic, starts[members], int(lengths[members[0]]))
        for members in groups.values()
    ]
    found.sort(key=lambda one: (-one.worth_us, -one.total_us))
    return found


def _runs(linked: Mask) -> tuple[Ints, Ints]:
    """Starts and lengths of the chains, cut after `LONGEST_CHAIN` kernels."""
    edges = np.diff(np.concatenate(([0], linked.astype(np.int8), [0])))
    starts, ends = np.flatnonzero(edges > 0), np.flatnonzero(edges < 0)
    sizes = ends - starts + 1
    pieces = -(-sizes // LONGEST_CHAIN)
    owner = np.repeat(np.arange(len(starts)), pieces)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begin = starts[owner] + number * LONGEST_CHAIN
    lengths = np.minimum(LONGEST_CHAIN, starts[owner] + sizes[owner] - begin)
    long_enough = lengths > 1
    return begin[long_enough], lengths[long_enough]


def _hashes(names: Ints, starts: Ints, lengths: Ints) -> Ints:
    """A number for each chain, the same for chains of the same names."""
    values = names.astype(np.uint64)
    found = lengths.astype(np.uint64)
    with np.errstate(over="ignore"):
        for offset in range(int(lengths.max())):
            inside = lengths > offset
            mixed = (values[starts[inside] + offset] + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
            found[inside] = (found[inside] ^ mixed) * np.uint64(0xBF58476D1CE4E5B9)
            found[inside] ^= found[inside] >> np.uint64(32)
    return found.astype(np.int64)


def _traffic(trace: Trace, rows: Ints, fusible: Mask) -> _Traffic:
    host = trace.host
    operator = np.full(len(rows), ABSENT, np.int64)
    calls = launch_rows(trace)[rows]
    asked = np.flatnonzero(fusible & (calls != ABSENT) & (trace.gpu.graph[rows] <= 0))
    operator[asked] = innermost_at(
        trace,
        host.thread[calls[asked]].astype(np.int64),
        host.start_us[calls[asked]],
        host.category == Category.OPERATOR,
    )
    moved = np.full(len(rows), np.nan)
    shared = np.full(len(rows), np.nan)
    known = np.flatnonzero(operator != ABSENT)
    if not len(known) or not trace.shapes:
        return _Traffic(operator, moved, shared)
    many = len(trace.shapes) + 1
    keys = host.name[operator[known]].astype(np.int64) * many + host.shape[operator[known]] + 1
    used = distinct(keys)
    kinds = np.full(len(rows), ABSENT, np.int64)
    kinds[known] = np.searchsorted(used, keys)
    told = [_call(trace, *divmod(key, many)) for key in used.tolist()]
    sizes = np.array([one.moved_bytes for one in told])
    moved[known] = sizes[kinds[known]]
    # Several kernels of one call share its work: their own parts are not known.
    same = np.flatnonzero((operator[1:] == operator[:-1]) & (operator[1:] != ABSENT))
    moved[same] = moved[same + 1] = np.nan
    pairs = np.flatnonzero(~np.isnan(moved[:-1]) & ~np.isnan(moved[1:]))
    codes = kinds[pairs] * len(used) + kinds[pairs + 1]
    neighbours = distinct(codes)
    between = np.array(
        [_between(told[code // len(used)], told[code % len(used)]) for code in neighbours.tolist()]
    )
    if len(pairs):
        shared[pairs] = between[np.searchsorted(neighbours, codes)]
    return _Traffic(operator, moved, shared)


class _Call(NamedTuple):
    """What one operator with one shape reads and writes."""

    moved_bytes: float
    written: float
    inputs: frozenset[int]


_UNKNOWN = _Call(np.nan, np.nan, frozenset())
_LIKE_THE_FIRST = frozenset(
    f"aten::{name}"
    for name in ("native_layer_norm", "native_group_norm", "native_batch_norm", "cudnn_batch_norm",
                 "_fused_rms_norm", "native_dropout")
)  # fmt: skip
"""They write what their first input is as large as."""


def _call(trace: Trace, name: int, shape: int) -> _Call:
    inputs = operator_inputs(trace.shapes[shape - 1]) if shape else None
    if inputs is None:
        return _UNKNOWN
    operator = trace.names[name]
    sizes = [inputs.bytes(place) for place in range(len(inputs.dims))]
    known = [size for size in sizes if size]
    if operator == "aten::copy_":  # writes its first argument and reads its second
        if len(sizes) < 2 or not sizes[0] or not sizes[1]:
            return _UNKNOWN
        return _Call(float(sizes[0] + sizes[1]), float(sizes[0]), frozenset((sizes[1],)))
    moved = bytes_of(operator, inputs)
    if operator in _LIKE_THE_FIRST and sizes and sizes[0]:
        moved = float(sum(known) + sizes[0])
    if moved is None or not known:
        return _UNKNOWN
    return _Call(moved, moved - sum(known), frozenset(known))


def _between(before: _Call, after: _Call) -> float:
    """The size of what the first writes and the second reads; 0 where no size fits."""
    return before.written if int(before.written) in after.inputs else 0.0


def _candidate(
    view: View, rows: Ints, us: Floats, traffic: _Traffic, starts: Ints, length: int
) -> FusionCandidate:
    trace = view.trace
    within = starts[:, None] + np.arange(length)
    times = us[within]
    total, longest = times.sum(axis=1), times.max(axis=1)
    moved = traffic.moved_bytes[within].sum(axis=1)
    saved = 2 * traffic.shared[within[:, :-1]].sum(axis=1)
    least = np.full(len(starts), np.nan)
    device = view.catalogued_device
    if device is not None:
        bandwidth = device.memory.bandwidth_bytes_per_second / device.chip.logical_devices
        least = (moved - saved) / bandwidth * 1e6
    by_memory = np.nan_to_num(least) > longest
    worth = np.maximum(total - np.where(by_memory, np.nan_to_num(least), longest), 0.0)
    known = bool(np.isfinite(moved).all() and np.isfinite(saved).all())
    members = rows[within[0]]
    owners = traffic.operator[within]
    operators = owners[int(np.argmax((owners != ABSENT).sum(axis=1)))].tolist()
    return FusionCandidate(
        kernels=[trace.names[name] for name in trace.gpu.name[members].tolist()],
        classes=[KERNEL_CLASSES[kind] for kind in kernel_classes(trace)[members].tolist()],
        operators=_names(trace, operators),
        count=len(starts),
        total_us=float(total.sum()),
        launches_saved=len(starts) * (length - 1),
        moved_bytes=float(moved.sum()) if known else None,
        saved_bytes=float(saved.sum()) if known else None,
        worth_us=float(worth.sum()),
        bound="memory" if 2 * int(by_memory.sum()) > len(starts) else "longest kernel",
        first_us=float(trace.gpu.start_us[members[0]]),
    )


def _names(trace: Trace, operators: Sequence[int]) -> list[str | None]:
    return [None if row == ABSENT else trace.names[trace.host.name[row]] for row in operators]
