"""Collectives of one rank by kind, group and size, with their bandwidth: `communication(trace)`.

Algorithm bandwidth is size / time; bus bandwidth multiplies it by what each link must carry:
2(n−1)/n for all-reduce, (n−1)/n for all-gather, reduce-scatter and all-to-all, 1 for the others
(NVIDIA/nccl-tests, doc/PERFORMANCE.md, whose sizes these are: the whole buffer). Sizes come from
the kernel's arguments, else from the `nccl:…` range around its launch when loaded with `details`.
A bandwidth stands beside the time that it is of: the median, and the fastest call. On one rank the
time of a kernel includes waiting for the others, so the bandwidth is a lower bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

import msgspec
import numpy as np

from ridgeline.hardware.catalogue import peer_bandwidth_bytes_per_second
from ridgeline.trace.columns import ABSENT, Collective, Floats, Ints, Trace
from ridgeline.trace.host_calls import innermost_at, launch_rows
from ridgeline.trace.intervals import intersection, measure
from ridgeline.trace.kernel_names import is_communication
from ridgeline.trace.sorting import median
from ridgeline.trace.windows import GpuRecord, View, views

DTYPE_BYTES = {
    "double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2, "byte": 1,
    "char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "long int": 8, "unsigned char": 1,
    "signed char": 1, "int64": 8, "int32": 4, "float32": 4, "float16": 2, "uint8": 1, "int8": 1,
}  # fmt: skip
"""Name of a dtype, as profilers write it → bytes per element."""
KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("reduce-scatter", r"reduce_?scatter"),
        (
            "all-reduce",
            r"all_?reduce|cross_device_reduce|quick_?reduce|(one|two)_?shot|lamport|rdxn",
        ),
        ("all-gather", r"all_?gather|fcollect"),
        ("all-to-all", r"all_?to_?all|a2a|dispatch|combine"),
        ("broadcast", r"broadcast|bcast"),
        ("send-receive", r"send|recv"),
        ("reduce", r"reduce"),
        ("barrier", r"barrier"),
    )
)
_RANGE = re.compile(r"^(nccl|rccl|gloo|c10d|record_param_comms)\b")


class CollectiveUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All collectives of one kind, group and size."""

    kind: str
    """`all-reduce`, `all-gather`, …; `other` where no name says."""
    kernel: str
    group: str | None
    group_size: int | None
    dtype: str | None
    bytes: int | None
    """The whole buffer of one call; None where the trace does not say."""
    count: int
    total_us: float
    min_us: float
    median_us: float
    max_us: float
    algorithm_bytes_per_second: float | None
    """At the median time, like the two below."""
    bus_bytes_per_second: float | None
    fastest_bus_bytes_per_second: float | None
    """At the fastest call (`min_us`), which waited least."""
    link_share: float | None
    """Bus bandwidth over the peak of the device's links, where the catalogue knows the device."""


class RankCommunication(GpuRecord, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Communication of one GPU of one rank."""

    world_size: int | None
    communication_us: float
    exposed_us: float
    calls: int
    sized_calls: int
    """Calls whose size the trace tells."""
    link_bytes_per_second: float | None
    """Peak per direction, from the catalogue."""
    collectives: list[CollectiveUse]
    """The collectives, most time first."""
    histogram: dict[str, int]
    """The number of calls by message size: the power of two at or below it, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall:
    """What is known of one communication kernel."""

    kind: str
    kernel: str
    group: str | None
    group_size: int | None
    dtype: str | None
    bytes: int | None


def communication(trace: Trace, window: str = "trace", *, top: int = 30) -> list[RankCommunication]:
    """Communication of each GPU of the trace."""
    return [_communication_of(view, top) for view in views(trace, window)]


def _communication_of(view: View, top: int) -> RankCommunication:
    trace, talks = view.trace, is_communication(view.trace)
    rows = view.rows[talks[view.rows]]
    calls = calls_of(trace, rows)
    groups: dict[CollectiveCall, list[int]] = {}
    for number, call in enumerate(calls):
        groups.setdefault(call, []).append(number)
    link = _link_bytes_per_second(view)
    durations = trace.gpu.duration_us[rows]
    found = [collective_use(call, durations[members], link) for call, members in groups.items()]
    found.sort(key=lambda use: -use.total_us)
    spoken = view.set_of(talks)
    hidden = measure(intersection(spoken, view.set_of((trace.gpu.kind == 0) & ~talks)))
    sizes = [call.bytes for call in calls if call.bytes]
    exponents, counts = np.unique([size.bit_length() - 1 for size in sizes], return_counts=True)
    return RankCommunication(
        **view.head(),
        world_size=trace.world_size,
        communication_us=measure(spoken),
        exposed_us=measure(spoken) - hidden,
        calls=len(calls),
        sized_calls=len(sizes),
        link_bytes_per_second=link,
        collectives=found[:top],
        histogram={
            str(2 ** int(exponent)): int(count)
            for exponent, count in zip(exponents, counts, strict=True)
        },
    )


def collective_use(call: CollectiveCall, durations: Floats, link: float | None) -> CollectiveUse:
    """Calls of one kind and size, which took `durations` in µs, on links of `link` bytes/s."""
    fastest, typical = float(durations.min()), median(durations)
    factor = bus_factor(call.kind, call.group_size)
    bus = _rate(call.bytes, typical, factor)
    return CollectiveUse(
        kind=call.kind,
        kernel=call.kernel,
        group=call.group,
        group_size=call.group_size,
        dtype=call.dtype,
        bytes=call.bytes,
        count=len(durations),
        total_us=float(durations.sum()),
        min_us=fastest,
        median_us=typical,
        max_us=float(durations.max()),
        algorithm_bytes_per_second=_rate(call.bytes, typical, 1.0),
        bus_bytes_per_second=bus,
        fastest_bus_bytes_per_second=_rate(call.bytes, fastest, factor),
        link_share=bus / link if bus is not None and link else None,
    )


def _rate(size: int | None, us: float, factor: float | None) -> float | None:
    return size / us * 1e6 * factor if size and us > 0 and factor is not None else None


def bus_factor(kind: str, group_size: int | None) -> float | None:
    """What a link carries per byte of the buffer.

    >>> bus_factor("all-reduce", 8), bus_factor("broadcast", None), bus_factor("all-gather", None)
    (1.75, 1.0, None)
    """
    shared = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0, "all-to-all": 1.0}
    if kind not in shared:
        return 1.0
    if not group_size:
        return None
    return shared[kind] * (group_size - 1) / group_size


def kind_of(name: str) -> str:
    """Kind of a collective by the name of a kernel, a range or an argument.

    >>> kind_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL"), kind_of("_allgather_base")
    ('all-reduce', 'all-gather')
    """
    return next((kind for kind, pattern in KINDS if pattern.search(name)), "other")


def message_bytes(collective: Collective) -> int | None:
    """The bytes of the whole buffer of one call; None where the trace does not say."""
    width = DTYPE_BYTES.get((collective.dtype or "").lower())
    elements = max(collective.elements_in or 0, collective.elements_out or 0)
    return None if width is None or not elements else width * elements


def _link_bytes_per_second(view: View) -> float | None:
    """The peak of the device's links to its peers, per direction, where both are known."""
    device = view.catalogued_device
    return peer_bandwidth_bytes_per_second(device) if device is not None else None


def calls_of(trace: Trace, rows: Ints) -> list[CollectiveCall]:
    """What the trace tells of communication kernels, which are `rows` of its GPU table."""
    gpu = trace.gpu
    shapes = _range_shapes(trace, rows)
    found = []
    for row, (label, shape) in zip(rows.tolist(), shapes, strict=True):
        name = trace.names[gpu.name[row]]
        number = int(gpu.collective[row])
        if number != ABSENT:
            said = trace.collectives[number]
            kind = kind_of(said.name)
            found.append(
                CollectiveCall(
                    kind=kind,
                    kernel=name,
                    group=said.group_description or said.group,
                    group_size=said.group_size,
                    dtype=said.dtype,
                    bytes=message_bytes(said),
                )
            )
            continue
        kind = kind_of(label) if label else "other"
        size, dtype = message_size(shape)
        found.append(
            CollectiveCall(
                kind=kind if kind != "other" else kind_of(name),
                kernel=name,
                group=None,
                group_size=trace.world_size,
                dtype=dtype,
                bytes=size,
            )
        )
    return found


def _range_shapes(trace: Trace, rows: Ints) -> list[tuple[str | None, str | None]]:
    """Name and shapes of the `nccl:…` range that each kernel was launched in."""
    host, calls = trace.host, launch_rows(trace)[rows]
    ranges = np.array([bool(_RANGE.match(name)) for name in trace.names], bool)
    found: list[tuple[str | None, str | None]] = [(None, None)] * len(rows)
    known = np.flatnonzero(calls != ABSENT)
    if not len(known) or not ranges.any():
        return found
    inside = innermost_at(
        trace,
        host.thread[calls[known]].astype(np.int64),
        host.start_us[calls[known]],
        ranges[host.name],
    )
    for place, row in zip(known.tolist(), inside.tolist(), strict=True):
        if row != ABSENT:
            shape = int(host.shape[row])
            found[place] = (
                trace.names[host.name[row]],
                trace.shapes[shape] if shape != ABSENT else None,
            )
    return found


def message_size(shape: str | None) -> tuple[int | None, str | None]:
    """Bytes and dtype of a range's inputs; None where one of them is not plain."""
    if shape is None:
        return None, None
    try:
        dims, types = msgspec.json.decode(shape, type=tuple[list[list[int]], list[str]])
    except msgspec.DecodeError:
        return None, None
    dtype = types[0].removeprefix("c10::") if types else None
    width = DTYPE_BYTES.get((dtype or "").lower())
    if width is None or not dims:
        return None, dtype
    return sum(prod(dim) for dim in dims if dim) * width or None, dtype
