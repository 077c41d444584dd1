"""Pours decoded events into numpy columns, batch by batch, and interns what repeats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import floor, prod
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from ridgeline.trace.columns import (
    ABSENT,
    TABLES,
    Category,
    Codes,
    Collective,
    Floats,
    GpuEvents,
    HostEvents,
    Kind,
    MemoryEvents,
    Narrow,
    SyncRecords,
)
from ridgeline.trace.formats.kineto.events import Role, kind_of
from ridgeline.trace.formats.kineto.growing_table import GrowingTable
from ridgeline.trace.formats.kineto.numbering import Interned, Threads, plain
from ridgeline.trace.formats.kineto.several_ranks import FIRST_LANE, Lane
from ridgeline.trace.sorting import median

_UINT64 = 2**64 - 1
_LARGEST = 2**31 - 1
_DIGITS = re.compile(r"\d{1,10}")
_LONGEST_US = 365.25 * 86400e6
"""No trace is longer than a year."""
_MTIA_WAIT = "event_wait"
_NO_WORK_ON_MTIA = frozenset({_MTIA_WAIT, "event_record"})
_CUPTI_WAIT = "Stream Wait Event"
"""What CUPTI calls a stream's wait for another one."""

_TS, _DUR, _NAME = attrgetter("ts"), attrgetter("dur"), attrgetter("name")
_PROCESS = attrgetter("pid")


_OF_SOME: dict[str, type] = {
    "correlation": np.int64,
    "external_id": np.int64,
    "shape": np.int32,
    "stack": np.int32,
    "sequence": np.int64,
}
"""Columns of the host that not every event has."""


class _Sizes(dict[tuple[int, ...] | str | None, int]):
    """Blocks of a grid, threads of a block; no grid that a GPU takes is larger than the limit.

    Collectors that are not torch's write what stands in Kineto's list as text: `"[87, 32, 1]"`.
    """

    def __missing__(self, dims: tuple[int, ...] | str | None) -> int:
        numbers = map(int, _DIGITS.findall(dims)) if isinstance(dims, str) else dims or ()
        size = self[dims] = min(abs(prod(numbers)), _LARGEST) if dims else ABSENT
        return size


@dataclass(slots=True)
class Columns:
    """Everything that has been read so far."""

    details: bool
    implausible: int = 0
    """Events whose time is beyond reason."""
    base: float | None = None
    """The first time stamp, whole: columns hold times relative to it."""
    names: Interned = field(default_factory=Interned)
    threads: Threads = field(default_factory=Threads)
    collectives: Interned = field(default_factory=Interned)
    shapes: Interned = field(default_factory=Interned)
    stacks: Interned = field(default_factory=Interned)
    sizes: _Sizes = field(default_factory=_Sizes)
    lanes: Interned = field(default_factory=Interned)
    """Process and GPU of work that is shown below a process which is not the GPU's number."""
    rank_of_lane: dict[int, int] = field(default_factory=dict)
    """Number of a lane → the rank that a tool wrote beside its events."""
    gpu: GrowingTable = field(default_factory=lambda: GrowingTable(GpuEvents))
    host: GrowingTable = field(default_factory=lambda: GrowingTable(HostEvents))
    sync: GrowingTable = field(default_factory=lambda: GrowingTable(SyncRecords))
    memory: GrowingTable = field(default_factory=lambda: GrowingTable(MemoryEvents))
    gpu_annotations: GrowingTable = field(default_factory=lambda: GrowingTable(GpuEvents))

    def add(self, role: Role, events: list[Any]) -> None:
        """Take the events of one struct that are neither the host's nor work of a GPU."""
        if role is Role.MTIA:
            self._add_mtia(events)
        elif role is Role.GPU_ANNOTATION:
            self._add_gpu(self.gpu_annotations, [(Kind.KERNEL, events)])
        elif role is Role.SYNC:
            self._add_sync(events)
        elif role is Role.MEMORY:
            self._add_memory(events)

    def _stamps(self, events: list[Any]) -> Floats:
        first = events[0].ts
        if self.base is None:
            self.base = float(floor(first))
        if isinstance(first, Decimal):
            base = Decimal(self.base)
            return np.array([float(event.ts - base) for event in events], np.float64)
        stamps: Floats = np.fromiter(map(_TS, events), np.float64, len(events))
        stamps -= self.base
        return stamps

    def _lengths(self, events: list[Any], start: Floats) -> Floats:
        """Durations that end where float64 puts stamp plus duration, on the file's own clock.

        Stamps of today's size are multiples of 2**-12 µs there; so are then all ends, and events
        that touch in the file touch in the columns, whatever is subtracted from both.
        """
        lengths: Floats = np.fromiter(map(_DUR, events), np.float64, len(events))
        if isinstance(events[0].ts, Decimal):
            return lengths
        absolute = start + (self.base or 0.0)
        ends = absolute + lengths
        ends -= absolute
        return ends

    def add_host(self, groups: Sequence[tuple[Role, Category, list[Any]]]) -> None:
        """Take what a batch holds of the host, by struct: most groups are small, so all at once."""
        events = [event for _, _, members in groups for event in members]
        size = len(events)
        start = self._stamps(events)
        columns: dict[str, Any] = {
            "start_us": start,
            "duration_us": self._lengths(events, start),
            "name": self._name_numbers(events),
            "category": _repeated([(category, len(members)) for _, category, members in groups]),
            "thread": self.threads.numbers(events),
        }
        begin = 0
        for role, _, members in groups:
            rows = slice(begin, begin + len(members))
            begin = rows.stop
            for name, values in self._of_role(role, members).items():
                if name not in columns:
                    columns[name] = np.full(size, ABSENT, _OF_SOME[name])
                columns[name][rows] = values
        self.host.add(size, **columns)

    def _of_role(self, role: Role, events: list[Any]) -> dict[str, list[int]]:
        """The columns that only events of this role have."""
        if role is Role.RUNTIME:
            return {"correlation": [event.args.correlation for event in events]}
        if role is not Role.OPERATOR:
            return {}
        found = {"external_id": [event.args.external_id for event in events]}
        return {**found, **self._details(events)} if self.details else found

    def _details(self, events: list[Any]) -> dict[str, list[int]]:
        shapes, numbers = [], self.shapes
        for event in events:
            args = event.args
            dims = bytes(args.dims)
            if not dims:
                shapes.append(ABSENT)
                continue
            # A convolution's work depends on its stride too; elsewhere values only multiply texts.
            values = bytes(args.values) if "conv" in event.name else b""
            shapes.append(numbers[dims, bytes(args.types), values])
        found = {"shape": shapes, "sequence": [event.args.sequence for event in events]}
        stacks = [event.args.stack for event in events]
        if any(stacks):
            found["stack"] = [self.stacks[stack] if stack else ABSENT for stack in stacks]
        return found

    def _name_numbers(self, events: list[Any]) -> Any:
        return np.fromiter(map(self.names.__getitem__, map(_NAME, events)), np.int32, len(events))

    def add_gpu(self, groups: Sequence[tuple[str, list[Any]]]) -> None:
        """Take what a batch holds of a GPU's work, by category."""
        self._add_gpu(self.gpu, [(kind_of(category), events) for category, events in groups])

    def _add_gpu(self, table: GrowingTable, groups: Sequence[tuple[Kind, list[Any]]]) -> None:
        events = [event for _, members in groups for event in members]
        args = [event.args for event in events]
        start = self._stamps(events)
        table.add(
            len(events),
            start_us=start,
            duration_us=self._lengths(events, start),
            name=self._name_numbers(events),
            kind=_repeated([(kind, len(members)) for kind, members in groups]),
            device=self._devices(events),
            stream=np.array([_stream(event) for event in events], np.int64),
            correlation=np.array([a.correlation for a in args], np.int64),
            external_id=np.array([max(a.external_id, a.old_external_id) for a in args], np.int64),
            graph=np.array([a.graph for a in args], np.int64),
            bytes=np.array([a.bytes for a in args], np.int64),
            blocks=self._sizes([a.grid for a in args], np.int64),
            threads_per_block=self._sizes([a.block for a in args], np.int32),
            blocks_per_sm=_numbers([a.blocks_per_sm for a in args]),
            occupancy_percent=_numbers([a.occupancy for a in args]),
            registers_per_thread=np.array([a.registers for a in args], np.int32),
            shared_bytes=np.array([a.shared for a in args], np.int64),
            collective=np.array([self._collective(a) for a in args], np.int32),
        )

    def _sizes(self, dims: list[Any], kind: type) -> Any:
        return np.fromiter(map(self.sizes.__getitem__, dims), kind, len(dims))

    def _devices(self, events: list[Any]) -> Narrow:
        """The GPU of each event, or its lane where it is shown below another process."""
        shown = list(map(_PROCESS, events))
        found = [event.args.device for event in events]
        if found != shown:
            found = [self._place(event) for event in events]
        return np.array(found, np.int32)

    def _place(self, event: Any) -> int:
        process, device = plain(event.pid), event.args.device
        if isinstance(process, int) and device in (process, ABSENT):
            return process if 0 <= process <= _LARGEST else ABSENT
        number: int = self.lanes[process, device]
        rank = _whole(getattr(event.args, "rank", None))
        if rank is not None:
            self.rank_of_lane[number] = rank
        return FIRST_LANE - number

    def _add_mtia(self, events: list[Any]) -> None:
        """Jobs and copies of MTIA as GPU work, its waits for other streams as waits."""
        jobs = [event for event in events if event.name not in _NO_WORK_ON_MTIA]
        copies = [event for event in jobs if event.args.direction]
        waits = [event for event in events if event.name == _MTIA_WAIT]
        for kind, chosen in (
            (Kind.KERNEL, [event for event in jobs if not event.args.direction]),
            (Kind.MEMCPY, [_as_copy(event) for event in copies]),
        ):
            if chosen:
                self._add_gpu(self.gpu, [(kind, chosen)])
        if waits:
            self._add_sync([msgspec.structs.replace(one, name=_CUPTI_WAIT) for one in waits])

    def _collective(self, args: Any) -> int:
        if args.collective is None:
            return ABSENT
        return self.collectives[
            Collective(
                name=args.collective,
                elements_in=_whole(args.elements_in),
                elements_out=_whole(args.elements_out),
                dtype=_text(args.dtype),
                group_size=_whole(args.group_size),
                group=_text(args.group),
                group_description=_text(args.group_description),
                ranks=_text(args.ranks),
                source_rank=_whole(args.source_rank),
                destination_rank=_whole(args.destination_rank),
            )
        ]

    def _add_sync(self, events: list[Any]) -> None:
        args = [event.args for event in events]
        device = self._devices(events)
        device[[a.device == ABSENT for a in args]] = ABSENT
        start = self._stamps(events)
        self.sync.add(
            len(events),
            start_us=start,
            duration_us=self._lengths(events, start),
            name=self._name_numbers(events),
            device=device,
            stream=np.array([a.stream for a in args], np.int64),
            correlation=np.array([a.correlation for a in args], np.int64),
            wait_on_stream=np.array([a.wait_on_stream for a in args], np.int64),
            wait_on_record=np.array([getattr(a, "wait_on_record", ABSENT) for a in args], np.int64),
        )

    def _add_memory(self, events: list[Any]) -> None:
        events = [event for event in events if event.name == "[memory]"]
        if not events:
            return
        args = [event.args for event in events]
        self.memory.add(
            len(events),
            time_us=self._stamps(events),
            bytes=np.array([a.bytes for a in args], np.int64),
            address=np.array([a.address & _UINT64 for a in args], np.uint64),
            device_type=np.array([a.device_type for a in args], np.int32),
            device=np.array([a.device for a in args], np.int32),
            allocated_bytes=np.array([a.allocated for a in args], np.int64),
            reserved_bytes=np.array([a.reserved for a in args], np.int64),
            thread=self.threads.numbers(events),
        )

    def known_lanes(self) -> tuple[Lane, ...]:
        """The lanes by number."""
        return tuple(
            Lane(process=process, device=device, rank=self.rank_of_lane.get(number))
            for (process, device), number in self.lanes.items()
        )

    def _leave_out_implausible(self, tables: dict[str, dict[str, Any]]) -> None:
        """Drop what lies more than a year from everything else: no profiler records so long."""
        stamps = {name: _stamp_column(table) for name, table in tables.items()}
        ends = {
            name: stamps[name] + np.maximum(table.get("duration_us", 0.0), 0.0)
            for name, table in tables.items()
        }
        known = [(stamps[name], ends[name]) for name in tables if len(stamps[name])]
        if not known:
            return
        first = min(float(start.min()) for start, _ in known)
        if max(float(end.max()) for _, end in known) - first <= _LONGEST_US:
            return
        middle = median(np.concatenate([start for start, _ in known]))
        for name, table in tables.items():
            sound = (stamps[name] >= middle - _LONGEST_US) & (ends[name] <= middle + _LONGEST_US)
            self.implausible += len(sound) - int(sound.sum())
            tables[name] = {column: values[sound] for column, values in table.items()}

    def joined(self) -> dict[str, Any]:
        """The tables of a `Trace`, on one clock that starts at its first event."""
        tables = {name: getattr(self, name).join() for name in TABLES}
        self._leave_out_implausible(tables)
        times = [table.get("start_us", table.get("time_us")) for table in tables.values()]
        shift = float(floor(min((float(time.min()) for time in times if len(time)), default=0.0)))
        for time in times:
            if len(time):
                np.subtract(time, shift, out=time)
        self.base = (self.base or 0.0) + shift
        for name in ("gpu", "gpu_annotations"):
            table = tables[name]
            order = np.lexsort((table["duration_us"], table["start_us"]))
            tables[name] = {column: values[order] for column, values in table.items()}
        return {name: kind(**tables[name]) for name, kind in TABLES.items()}


def _repeated(codes: Sequence[tuple[int, int]]) -> Codes:
    """Each code so many times."""
    return np.repeat(np.array([code for code, _ in codes], np.int8), [times for _, times in codes])


def _stamp_column(table: dict[str, Any]) -> Floats:
    found: Floats = table["start_us"] if "start_us" in table else table["time_us"]
    return found


def _as_copy(event: Any) -> Any:
    """A transfer of MTIA's DMA engine with the name and the size that copies have elsewhere."""
    source, _, target = event.args.direction.partition("_TO_")
    name = f"Memcpy {source[:1]}to{target[:1]} ({source.title()} -> {target.title()})"
    args = msgspec.structs.replace(event.args, bytes=event.args.size)
    return msgspec.structs.replace(event, name=name, args=args)


def _stream(event: Any) -> int:
    stream: int = event.args.stream
    if stream == ABSENT and isinstance(event.tid, int):
        return event.tid if abs(event.tid) <= _LARGEST else ABSENT
    return stream


def _numbers(values: list[float | None]) -> Floats:
    return np.array(values, np.float64)  # None becomes NaN


def _whole(value: Any) -> int | None:
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        return None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
