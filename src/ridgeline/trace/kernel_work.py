"""Whose work a kernel does: the operator that launched it, and the kernel's part in its work.

A trace has no counters: FLOPs and bytes are those that the operator cannot do without
(`operator_flops.py`, `operator_bytes.py`), and a kernel's part in them is told by these rules.

1.  A kernel belongs to the operator around its launch, found by correlation, or by the profiler's
    own link where the launch is outside of the trace. Kernels of a replayed graph belong to none.
2.  Inside a product of matrices, an attention or a convolution the operator's work goes to its
    kernels of that class (gemm, attention, convolution); to its only kernel whatever its class.
    What else it launches (split-K sums, layout changes, fills) has no work of its own and is not
    in the figures of the kernels that have.
3.  Elsewhere the innermost operator counts if it is element-wise, and only bytes are known.
4.  Several kernels of one call share its work by their time, so each shows the call's rate.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Floats, Ints, Kind, Trace
from ridgeline.trace.convolution_flops import CONVOLUTIONS, OLD_BACKWARD
from ridgeline.trace.innermost import innermost_at
from ridgeline.trace.kernel_classes import (
    KernelClass,
    kernel_classes,
    on_plain_fp32,
    on_tensor_cores,
)
from ridgeline.trace.launches import launch_rows
from ridgeline.trace.operator_bytes import bytes_of, has_traffic
from ridgeline.trace.operator_flops import (
    ATTENTION_BACKWARD,
    COUNTED,
    PRODUCTS,
    counted_rows,
    flops_of,
)
from ridgeline.trace.operator_inputs import DTYPES, Inputs, inputs_of
from ridgeline.trace.windows import View

_BESIDE_THE_WORK = re.compile(
    r"splitk_?reduce|nchwtonhwc|nhwctonchw|transpose|im2col|col2im|combine|dot_do_o|convert_dq"
    r"|preprocess|postprocess|workspace|winograd\w*transform",
    re.IGNORECASE,
)
"""Kernels whose names put them into the class of an operator for which they only prepare."""


@dataclass(frozen=True, slots=True)
class WorkPart:
    """One kernel's part of one call: time, work and whose peak is the roof."""

    us: float
    flops: float | None
    bytes: float | None
    arithmetic: str | None


def work_by_kernel(view: View, durations: Floats) -> dict[int, list[WorkPart]]:
    """Parts of calls with known shapes, by kernel name (index into `Trace.names`).

    `durations` are those of the view's rows. Empty for a trace without shapes.
    """
    trace = view.trace
    if not trace.shapes:
        return {}
    kernels = np.flatnonzero(trace.gpu.kind[view.rows] == Kind.KERNEL)
    owners = _owners(trace, view.rows[kernels])
    calls: dict[int, list[int]] = defaultdict(list)
    for place, owner in zip(kernels.tolist(), owners.tolist(), strict=True):
        if owner != ABSENT:
            calls[owner].append(place)
    parts: dict[int, list[WorkPart]] = defaultdict(list)
    for owner, places in calls.items():
        for name, part in _parts(view, owner, places, durations):
            parts[name].append(part)
    return parts


def _owners(trace: Trace, rows: Ints) -> Ints:
    """Row in `trace.host` of the operator that each kernel works for."""
    host = trace.host
    calls = launch_rows(trace)[rows]
    linked = _linked(trace, rows)
    source = np.where(calls != ABSENT, calls, linked)
    owners = np.full(len(rows), ABSENT, np.int64)
    known = np.flatnonzero((source != ABSENT) & (trace.gpu.graph[rows] <= 0))
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


def _linked(trace: Trace, rows: Ints) -> Ints:
    """The operator that the profiler itself names for a kernel, by external id."""
    host = trace.host
    operators = np.flatnonzero((host.category == Category.OPERATOR) & (host.external_id > 0))
    found = np.full(len(rows), ABSENT, np.int64)
    if not len(operators) or not len(rows):
        return found
    operators = operators[np.argsort(host.external_id[operators], kind="stable")]
    numbers, wanted = host.external_id[operators], trace.gpu.external_id[rows]
    places = np.minimum(np.searchsorted(numbers, wanted), len(operators) - 1)
    same = (numbers[places] == wanted) & (wanted > 0)
    found[same] = operators[places[same]]
    return found


def _parts(
    view: View, owner: int, places: list[int], durations: Floats
) -> list[tuple[int, WorkPart]]:
    """The work of one call, shared among the kernels that do it."""
    trace, host, gpu = view.trace, view.trace.host, view.trace.gpu
    shape = int(host.shape[owner])
    inputs = inputs_of(trace.shapes[shape]) if shape != ABSENT else None
    if inputs is None:
        return []
    operator = trace.names[host.name[owner]]
    if operator in COUNTED and len(places) > 1:
        places = [place for place in places if _works(trace, int(view.rows[place]), operator)]
    flops = flops_of(operator, trace.shapes[shape])
    moved = bytes_of(operator, inputs)
    whole = float(durations[places].sum())
    if whole <= 0 or (flops is None and moved is None):
        return []
    parts = []
    for place in places:
        name, us = int(gpu.name[view.rows[place]]), float(durations[place])
        share = us / whole
        arithmetic = _arithmetic(operator, inputs, trace.names[name]) if flops else None
        part = WorkPart(
            us,
            None if flops is None else flops * share,
            None if moved is None else moved * share,
            arithmetic,
        )
        parts.append((name, part))
    return parts


def _works(trace: Trace, row: int, operator: str) -> bool:
    """Does this kernel do what the operator is for?"""
    if _BESIDE_THE_WORK.search(trace.names[trace.gpu.name[row]]):
        return False
    return int(kernel_classes(trace)[row]) in _classes(operator)


def _classes(operator: str) -> tuple[KernelClass, ...]:
    if operator in PRODUCTS:
        return (KernelClass.GEMM,)
    if operator in CONVOLUTIONS:
        return (KernelClass.CONVOLUTION, KernelClass.GEMM)
    return (KernelClass.ATTENTION,)


def _arithmetic(operator: str, inputs: Inputs, kernel: str) -> str | None:
    """Whose peak is the roof, by the format of the input and, for fp32, the kernel's name."""
    place = PRODUCTS.get(operator, int(operator in (*ATTENTION_BACKWARD, OLD_BACKWARD)))
    dtype = DTYPES.get(inputs.types[place]) if place < len(inputs.types) else None
    if dtype == "fp64":
        return None  # vector or tensor units: no name says
    if dtype != "fp32":
        return dtype
    if on_tensor_cores(kernel):
        return "tf32"
    return "fp32" if on_plain_fp32(kernel) else None
