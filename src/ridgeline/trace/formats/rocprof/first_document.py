"""The JSON of rocprof, the profiler before rocprofv3: events without categories, by process.

`rocprof --hip-trace ./program` leaves `results.json` beside its tables, for chrome://tracing:

    CPU HIP API, CPU HSA API    calls, by thread
    COPY                        copies: CopyHostToDevice, …
    GPU0, …                     kernels, by queue
    Markers and Ranges          ranges that the program named
    flows "dep"                 from a moment inside a call to the start of what it launched

Without calls (`rocprof --timestamp on`) a kernel says when it was put into its queue, as it does in
the table of the same run.

Source: github.com/ROCm/rocprofiler, bin/tblextr.py and bin/sqlitedb.py.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path

import msgspec

from ridgeline.trace.columns import ABSENT
from ridgeline.trace.file_rows import FileRows
from ridgeline.trace.file_text import refused_unless_whole
from ridgeline.trace.formats.rocprof.first_database import (
    DISPATCH,
    NO_WORK,
    first_copy_name,
    kernel_name,
)
from ridgeline.trace.formats.rocprof.hsa import block_counts

_GPU = re.compile(r"GPU(\d+)$")
_CALLS = ("CPU HIP API", "CPU HSA API")
_COPIES, _RANGES = "COPY", "Markers and Ranges"
_COPYING = re.compile(r"hip(Memcpy|Memset)")
_COUNTS = "Unknown command type"
"""How rocprof names a marker in a queue."""


class _Args(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    begin: str = msgspec.field(default="", name="BeginNs")
    end: str = msgspec.field(default="", name="EndNs")
    device: str = msgspec.field(default="0", name="dev-id")
    queue: int | str | None = msgspec.field(default=None, name="queue-id")
    dispatched: str = msgspec.field(default="", name="DispatchNs")
    thread: int | str = msgspec.field(default=0, name="tid")
    grid: int | str = msgspec.field(default=0, name="grd")
    workgroup: int | str = msgspec.field(default=0, name="wgr")
    shared: int | str = msgspec.field(default=ABSENT, name="lds")
    registers: int | str = msgspec.field(default=ABSENT, name="arch_vgpr")


class _Event(msgspec.Struct, frozen=True, gc=False):
    ph: str = ""
    name: str = ""
    pid: int | str = ABSENT
    tid: int | str = ABSENT
    ts: int | str = 0
    id: int | str = ABSENT
    args: _Args = _Args()


class _Document(msgspec.Struct, frozen=True):
    events: list[_Event] = msgspec.field(name="traceEvents")


def read_first_document(path: Path) -> FileRows:
    """Everything that a JSON of rocprof holds.

    Raises:
        InputError: it is not whole, or not what rocprof writes.
    """
    with refused_unless_whole(path, "trace of rocprof") as text:
        return _filled(msgspec.json.decode(text, type=_Document).events)


def _filled(events: list[_Event]) -> FileRows:
    found = FileRows()
    processes = {str(one.pid): one.args.name for one in events if one.ph == "M"}
    spans = [one for one in events if one.ph == "X" and one.args.begin and one.args.end]
    calls = [one for one in spans if processes.get(str(one.pid)) in _CALLS]
    numbers = _launches(events, calls)
    _add_copying(numbers, calls, [one for one in spans if processes.get(str(one.pid)) == _COPIES])
    for place, one in enumerate(spans):
        process = processes.get(str(one.pid), "")
        when = {"start": int(one.args.begin), "end": int(one.args.end)}
        where = _whole(one.tid)
        number = numbers.get(_key(one), ABSENT)
        if process in _CALLS:
            found.add_call(name=one.name, process=0, thread=where, correlation=number, **when)
        elif process == _RANGES:
            found.add_range(written=one.name, process=0, thread=where, **when)
        elif process == _COPIES:
            found.add_copy(
                name=first_copy_name(one.name), device=_whole(one.args.device), stream=where,
                correlation=_of_its_own(number, place), process=0, size=ABSENT, **when,
            )  # fmt: skip
        elif (gpu := _GPU.match(process)) and not _is_no_work(one.name):
            if number == ABSENT and one.args.dispatched:
                number = len(numbers) + 1 + place
                queued = int(one.args.dispatched)
                found.add_call(name=DISPATCH, start=queued, end=queued, process=0,
                               thread=_whole(one.args.thread), correlation=number)  # fmt: skip
            blocks, threads = block_counts((_size(one.args.grid),), (_size(one.args.workgroup),))
            found.add_kernel(
                name=kernel_name(one.name), device=int(gpu[1]),
                stream=where if one.args.queue is None else _whole(one.args.queue),
                correlation=_of_its_own(number, place), process=0, blocks=blocks,
                threads=threads, shared=_size(one.args.shared),
                registers=_size(one.args.registers), **when,
            )  # fmt: skip
    return found


def _of_its_own(number: int, place: int) -> int:
    """The number of a call; one that no call has where nothing tells which it is."""
    return ABSENT - 1 - place if number == ABSENT else number


def _is_no_work(name: str) -> bool:
    return name == _COUNTS or NO_WORK.match(name) is not None


def _launches(events: list[_Event], calls: list[_Event]) -> dict[tuple[str, str, int], int]:
    """(Process, thread or queue, start in µs) of a call, and of what it launched → their number."""
    by_thread: dict[tuple[str, str], list[int]] = defaultdict(list)
    for call in calls:
        by_thread[str(call.pid), str(call.tid)].append(_whole(call.ts))
    for known in by_thread.values():
        known.sort()
    from_call: dict[int | str, tuple[str, str, int]] = {}
    numbers: dict[tuple[str, str, int], int] = {}
    for one in events:
        place = (str(one.pid), str(one.tid))
        if one.ph == "s" and (starts := by_thread.get(place)):
            before = bisect_right(starts, _whole(one.ts)) - 1
            if before >= 0:
                from_call[one.id] = (*place, starts[before])
        elif one.ph == "t" and one.id in from_call:
            number = numbers.setdefault(from_call[one.id], len(numbers) + 1)
            numbers[_key(one)] = number
    return numbers


def _add_copying(
    numbers: dict[tuple[str, str, int], int], calls: list[_Event], copies: list[_Event]
) -> None:
    """Number copies of which no flow tells the call by the call that copied meanwhile."""
    copying = sorted((one for one in calls if _COPYING.match(one.name)),
                     key=lambda one: _whole(one.args.begin))  # fmt: skip
    starts = [_whole(one.args.begin) for one in copying]
    for copy in copies:
        before = bisect_right(starts, _whole(copy.args.begin)) - 1
        if before < 0 or _key(copy) in numbers:
            continue
        call = copying[before]
        if _whole(copy.args.end) <= _whole(call.args.end):
            number = numbers.setdefault(_key(call), len(numbers) + 1)
            numbers[_key(copy)] = number


def _key(event: _Event) -> tuple[str, str, int]:
    return str(event.pid), str(event.tid), _whole(event.ts)


def _whole(number: int | str) -> int:
    return int(number)


def _size(number: int | str) -> int:
    """A number that says how large something is; absent where it is none."""
    return int(number) if str(number).isdecimal() else ABSENT
