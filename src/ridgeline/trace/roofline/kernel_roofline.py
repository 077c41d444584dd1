"""Where kernels stand under the roofline, by the shapes of the operators that launched them.

A trace has no counters: FLOPs and bytes are those that the operator cannot do without
(`operator_flops.py`, `operator_bytes.py`), and a kernel's part in them is told by these rules.

1.  A kernel belongs to the operator around its launch, found by correlation, or by the profiler's
    own link where the launch is outside of the trace. Kernels of a replayed graph belong to none.
2.  Inside a matmul, an attention or a convolution the operator's work goes to its kernels of that
    class (gemm, attention, convolution); to its only kernel whatever its class. What else it
    launches (split-K sums, layout changes, fills) has no work of its own and is not in the figures
    of the kernels that have.
3.  Elsewhere the innermost operator counts if it is element-wise, and only bytes are known.
4.  Several kernels of one call share its work by their time, so each shows the call's rate.

The roof is the device's dense peak of the dtype and the bandwidth of its memory, from `hardware/`;
a device that is not known there has no roof, nor has fp32 whose kernel's name does not say whether
it runs on tensor cores. A call attains the least time that the roof allows over the time that it
took; a kernel's figure is over all of its calls whose shapes are known.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Codes, Floats, Ints, Kind, Mask, Trace
from ridgeline.trace.host_calls import innermost_at, launch_rows, linked_operators
from ridgeline.trace.kernel_names import (
    KernelClass,
    kernel_classes,
    on_tensor_cores,
)
from ridgeline.trace.roofline.operator_bytes import bytes_of, has_traffic
from ridgeline.trace.roofline.operator_flops import (
    ATTENTION_BACKWARD,
    CONVOLUTIONS,
    COUNTED,
    MATMULS,
    OLD_BACKWARD,
    counted_rows,
    flops_of,
)
from ridgeline.trace.roofline.operator_inputs import DTYPES, OperatorInputs, operator_inputs
from ridgeline.trace.windows import View

if TYPE_CHECKING:
    from ridgeline.hardware.facts import Device


_BESIDE_THE_WORK = re.compile(
    r"splitk_?reduce|nchwtonhwc|nhwctonchw|transpose|im2col|col2im|combine|dot_do_o|convert_dq"
    r"|preprocess|postprocess|workspace|winograd\w*transform",
    re.IGNORECASE,
)
"""Kernels whose names put them into the class of an operator for which they only prepare."""


_SOFTMAX = ("aten::_softmax", "aten::_softmax_backward_data")
_LEAST_QUERIES = 16
_NEAR = 4
"""Masks and scales stand between the scores of attention and their products, so many at most."""


class WorkPart(NamedTuple):
    """One kernel's part of one call: time, work and whose peak is the roof."""

    us: float
    flops: float | None
    bytes: float | None
    dtype: str | None
    is_avoidable: bool = False
    """Would a fused kernel not do it at all?"""


class _Ran(NamedTuple):
    """One kernel that a call launched."""

    name: int
    kernel_class: int
    us: float
    between_matmuls: bool


def work_by_kernel(view: View, durations: Floats) -> dict[int, list[WorkPart]]:
    """Parts of calls with known shapes, by kernel name (index into `Trace.names`).

    `durations` are those of the view's rows. Empty for a trace without shapes.
    """
    trace = view.trace
    if not trace.shapes:
        return {}
    host, gpu = trace.host, trace.gpu
    kernels = np.flatnonzero(gpu.kind[view.rows] == Kind.KERNEL)
    owners = trace.derived("owners of kernels", _owners)[view.rows[kernels]]
    kernels, owners = kernels[owners != ABSENT], owners[owners != ABSENT]
    classes, rows = kernel_classes(trace), view.rows[kernels]
    columns = _Kernels(
        owners=owners,
        name=gpu.name[rows],
        kernel_class=classes[rows],
        us=durations[kernels],
        between=_between_matmuls(classes[view.rows])[kernels],
    )
    parts: dict[int, list[WorkPart]] = defaultdict(list)
    told = host.shape[owners] != ABSENT
    alone = np.bincount(owners, minlength=len(host))[owners] == 1
    for kernel, part in _of_calls_alike(trace, columns.chosen(told & alone)):
        parts[kernel].append(part)
    for kernel, part in _of_calls(trace, columns.chosen(told & ~alone)):
        parts[kernel].append(part)
    return parts


class _Kernels(NamedTuple):
    """Kernels of a window, as columns."""

    owners: Ints
    """Row in the host table of the operator that each works for."""
    name: Ints
    kernel_class: Codes
    us: Floats
    between: Mask
    """Has it a matmul a little before and after?"""

    def chosen(self, which: Mask) -> _Kernels:
        return _Kernels(
            owners=self.owners[which],
            name=self.name[which],
            kernel_class=self.kernel_class[which],
            us=self.us[which],
            between=self.between[which],
        )


def _of_calls(trace: Trace, kernels: _Kernels) -> Iterator[tuple[int, WorkPart]]:
    """The work of calls that launched several kernels, call by call."""
    host = trace.host
    calls: dict[int, list[_Ran]] = defaultdict(list)
    for owner, *ran in zip(*(column.tolist() for column in kernels), strict=True):
        calls[owner].append(_Ran(*ran))
    asked = np.fromiter(calls, np.int64, len(calls))
    called, shapes = host.name[asked].tolist(), host.shape[asked].tolist()
    for name, shape, ran in zip(called, shapes, calls.values(), strict=True):
        yield from _parts(trace.names, trace.names[name], trace.shapes[shape], ran)


def _of_calls_alike(trace: Trace, kernels: _Kernels) -> Iterator[tuple[int, WorkPart]]:
    """The work of calls of one kernel each: those of equal operator, shapes and kernel at once.

    Of matmuls in fp32 each call stands by itself: what another format would save of one that is
    quick already is nothing, and not less than that.
    """
    host, many = trace.host, len(trace.names)
    key = host.name[kernels.owners].astype(np.int64)
    for column, size in ((host.shape[kernels.owners], len(trace.shapes)), (kernels.name, many),
                         (kernels.between, 2)):  # fmt: skip
        key = key * size + column
    order = np.argsort(key, kind="stable")
    firsts = np.flatnonzero(np.diff(key[order], prepend=-1))
    for same in np.split(order, firsts[1:]) if len(order) else []:
        one, owner = same[0], kernels.owners[same[0]]
        us = kernels.us[same]
        ran = _Ran(int(kernels.name[one]), int(kernels.kernel_class[one]), float(us.sum()),
                   bool(kernels.between[one]))  # fmt: skip
        called, shapes = trace.names[host.name[owner]], trace.shapes[host.shape[owner]]
        for kernel, part in _parts(trace.names, called, shapes, [ran]):
            if part.flops and part.dtype == "fp32":
                yield from ((kernel, part._replace(us=each)) for each in us.tolist() if each > 0)
                continue
            flops = None if part.flops is None else part.flops * len(same)
            moved = None if part.bytes is None else part.bytes * len(same)
            yield kernel, part._replace(flops=flops, bytes=moved)


def _between_matmuls(classes: Codes) -> Mask:
    """Which events have a matmul among the few before and the few after them."""
    until = np.concatenate(([0], np.cumsum(classes == KernelClass.GEMM)))
    places = np.arange(len(classes))
    before = until[places] - until[np.maximum(places - _NEAR, 0)]
    after = until[np.minimum(places + 1 + _NEAR, len(classes))] - until[places + 1]
    found: Mask = (before > 0) & (after > 0)
    return found


def _are_scores(operator: str, inputs: OperatorInputs) -> bool:
    """Is this a softmax over the scores of many queries, as attention that is not fused has?"""
    dims = inputs.tensor(0) or ()
    if operator not in _SOFTMAX or len(dims) < 3 or dims[-2] < _LEAST_QUERIES:
        return False
    return len(dims) == 4 or dims[-1] == dims[-2]


def _owners(trace: Trace) -> Ints:
    """Row in `trace.host` of the operator that each GPU event works for."""
    host, source = trace.host, launch_rows(trace).copy()
    unseen = np.flatnonzero(source == ABSENT)
    source[unseen] = linked_operators(trace, unseen)
    owners = np.full(len(source), ABSENT, np.int64)
    known = np.flatnonzero((source != ABSENT) & (trace.gpu.graph <= 0))
    threads = host.thread[source[known]].astype(np.int64)
    moments = host.start_us[source[known]]
    counted = np.zeros(len(host), bool)
    counted[counted_rows(trace)] = True
    owners[known] = innermost_at(trace, threads, moments, counted)
    rest = known[owners[known] == ABSENT]
    if len(rest):
        where = np.searchsorted(known, rest)
        inner = innermost_at(
            trace, threads[where], moments[where], host.category == Category.OPERATOR
        )
        simple = np.array([has_traffic(name) for name in trace.names] or [False])
        owners[rest] = np.where((inner != ABSENT) & simple[host.name[inner]], inner, ABSENT)
    return owners


def _parts(
    names: Sequence[str], operator: str, shapes: str, ran: list[_Ran]
) -> list[tuple[int, WorkPart]]:
    """The work of one call, shared among the kernels that do it."""
    inputs, flops, moved = _work(operator, shapes)
    if inputs is None or (flops is None and moved is None):
        return []
    if operator in COUNTED and len(ran) > 1:
        ran = [one for one in ran if _works(names[one.name], one.kernel_class, operator)]
    whole = sum(one.us for one in ran)
    if whole <= 0:
        return []
    return [
        (
            one.name,
            WorkPart(
                one.us,
                None if flops is None else flops * (one.us / whole),
                None if moved is None else moved * (one.us / whole),
                _dtype(operator, inputs, names[one.name]) if flops else None,
                one.between_matmuls and _are_scores(operator, inputs),
            ),
        )
        for one in ran
    ]


@lru_cache(maxsize=65536)
def _work(operator: str, shapes: str) -> tuple[OperatorInputs | None, float | None, float | None]:
    """Inputs, FLOPs and bytes of a call, which come again with every step."""
    inputs = operator_inputs(shapes)
    if inputs is None:
        return None, None, None
    return inputs, flops_of(operator, shapes), bytes_of(operator, inputs)


@lru_cache(maxsize=65536)
def _works(kernel: str, kernel_class: int, operator: str) -> bool:
    """Does this kernel do what the operator is for?"""
    return kernel_class in _classes(operator) and not _BESIDE_THE_WORK.search(kernel)


def _classes(operator: str) -> tuple[KernelClass, ...]:
    if operator in MATMULS:
        return (KernelClass.GEMM,)
    if operator in CONVOLUTIONS:
        return (KernelClass.CONVOLUTION, KernelClass.GEMM)
    return (KernelClass.ATTENTION,)


def _dtype(operator: str, inputs: OperatorInputs, kernel: str) -> str | None:
    """Whose peak is the roof, by the format of the input and, for fp32, the kernel's name."""
    place = MATMULS.get(operator, int(operator in (*ATTENTION_BACKWARD, OLD_BACKWARD)))
    dtype = DTYPES.get(inputs.types[place]) if place < len(inputs.types) else None
    if dtype == "fp64":
        return None  # vector or tensor units: no name says
    if dtype != "fp32":
        return dtype
    fast = on_tensor_cores(kernel)
    return None if fast is None else "tf32" if fast else "fp32"


class KernelRoofline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All calls of one kernel whose shapes are known, together."""

    known_share: float
    """The share of the kernel's time in calls whose shapes are known."""
    flops: float | None
    """None for element-wise work, which is not counted."""
    bytes: float | None
    """The least traffic that there can be: inputs once, outputs once."""
    intensity_flops_per_byte: float | None
    flops_per_second: float | None
    bytes_per_second: float | None
    dtype: str | None
    """The dtype whose peak the roof is; None for several, or where the name does not tell."""
    bound: Literal["compute", "memory"] | None
    """Which roof most of the least time lies under; None without a roof."""
    attained_percent: float | None
    """The least time under the roof over the time taken. Above 100 where a cache served
    what memory is reckoned with."""


def kernel_rooflines(view: View, durations: Floats) -> dict[int, KernelRoofline]:
    """Position of each kernel name (index into `Trace.names`) that has one."""
    found = work_by_kernel(view, durations)
    if not found:
        return {}
    names = view.trace.gpu.name[view.rows]
    total = np.bincount(names, weights=durations, minlength=len(view.trace.names))
    device = view.catalogued_device
    return {name: _position(parts, float(total[name]), device) for name, parts in found.items()}


def _position(parts: list[WorkPart], total_us: float, device: Device | None) -> KernelRoofline:
    us = sum(part.us for part in parts)
    counted = [part for part in parts if part.flops is not None]
    moving = [part for part in parts if part.bytes is not None]
    both = [part for part in counted if part.bytes is not None]
    flops = sum(part.flops or 0.0 for part in counted)
    moved = sum(part.bytes or 0.0 for part in moving)
    intensity = None
    if both and sum(part.bytes or 0.0 for part in both) > 0:
        intensity = sum(p.flops or 0.0 for p in both) / sum(p.bytes or 0.0 for p in both)
    kinds = {part.dtype for part in parts}
    bound, percent = _under_the_roof(parts, device)
    return KernelRoofline(
        known_share=us / total_us if total_us > 0 else 0.0,
        flops=flops if counted else None,
        bytes=moved if moving else None,
        intensity_flops_per_byte=intensity,
        flops_per_second=_rate(flops, counted),
        bytes_per_second=_rate(moved, moving),
        dtype=kinds.pop() if len(kinds) == 1 else None,
        bound=bound,
        attained_percent=percent,
    )


def _rate(amount: float, parts: list[WorkPart]) -> float | None:
    us = sum(part.us for part in parts)
    return amount / us * 1e6 if parts and us > 0 else None


def _under_the_roof(
    parts: list[WorkPart], device: Device | None
) -> tuple[Literal["compute", "memory"] | None, float | None]:
    """The roof over most of the least time, and the share of that in the time taken."""
    if device is None:
        return None, None
    bandwidth = device.memory.bandwidth_bytes_per_second / device.chip.logical_devices
    peaks = device.peaks
    compute_us = memory_us = taken_us = 0.0
    for part in parts:
        peak = peaks.get(part.dtype) if part.dtype else None
        if part.bytes is None or (part.flops and peak is None):
            continue  # a roof with one side missing bounds nothing
        if part.flops and peak:
            computing = part.flops / (peak / device.chip.logical_devices) * 1e6
        else:
            computing = 0.0
        moving = part.bytes / bandwidth * 1e6
        compute_us += computing if computing >= moving else 0.0
        memory_us += moving if moving > computing else 0.0
        taken_us += part.us
    if taken_us <= 0:
        return None, None
    bound: Literal["compute", "memory"] = "compute" if compute_us > memory_us else "memory"
    return bound, 100 * (compute_us + memory_us) / taken_us
