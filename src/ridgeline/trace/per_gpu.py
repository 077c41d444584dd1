"""A file that holds several GPUs, in whole nanoseconds, as one `Trace` per GPU.

Nsight Systems and rocprofv3 write one file for all GPUs of a process tree. A reader of such a file
gives its tables (`WholeFile`); here they are divided among GPUs, each with the host side of its
processes, nanoseconds becoming microseconds since the first event of the file. A GPU event belongs
to the torch operator whose range was open on the launching thread.

    process         the process in bits 24 … 47, machine above (NVIDIA's globalPid)
    correlation     unique within a process only, so the process is put into the upper half
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ridgeline.trace.columns import (
    ABSENT,
    Category,
    GpuEvents,
    HostEvents,
    Ints,
    SyncRecords,
    Trace,
    TraceDevice,
    empty_trace,
    filled_table,
    named_part,
)
from ridgeline.trace.host_calls import innermost_at, launch_rows
from ridgeline.trace.sorting import median

Table = dict[str, Ints]
"""Column → its values, a row each."""
_THREAD = 0xFFFFFF
_LONGEST_NS = 365.25 * 86400e9
"""No trace is longer than a year."""
_TORCH_RANGE = re.compile(r"^(?P<name>.*?)(?:, seq = (?P<seq>\d+))?, op_id = (?P<id>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The rows of one file, all GPUs together; times in whole nanoseconds."""

    work: Table
    calls: Table
    ranges: Table
    waits: Table
    base: int
    """The first of all times."""
    several: bool
    """Are there several GPUs?"""
    ranks: str
    """What is said of ranks that are numbers of GPUs."""
    warnings: tuple[str, ...]


class WholeFile(Protocol):
    """What a reader of a file with several GPUs finds in it; tables as `Table` says.

    gpu_work    start end device stream correlation process graph name kind bytes blocks threads
                registers shared, by start
    calls       start end process correlation name thread category, of the runtime and the driver
    ranges      start end process name thread category operator sequence: operators, annotations
    waits       start end process device stream correlation name record
    """

    names: dict[str, int]
    """Name → its number in the `name` columns."""
    threads: dict[tuple[int, int], int]
    """(process, thread) → its number in the `thread` columns."""

    def gpu_work(self) -> Table:
        """Kernels, copies and fills."""

    def calls(self) -> Table:
        """Calls of the runtime and the driver."""

    def ranges(self) -> Table:
        """Ranges on the host that have a name."""

    def waits(self) -> Table:
        """The records of synchronisation that the file has."""

    def device(self, index: int) -> TraceDevice:
        """What the file says of a GPU."""

    def thread_names(self) -> dict[int, str]:
        """Names of threads by their number in `threads`."""


def traces_per_gpu(
    path: Path, tables: WholeFile, *, ranks: str, record_gpu: str | None = None
) -> list[Trace]:
    """One trace per GPU of a file, lowest number first; none where nothing is in it.

    `ranks` is the warning that a trace gets whose rank is the number of its GPU; `record_gpu` is
    what `Trace` has by that name.
    """
    work = tables.gpu_work()
    calls = tables.calls()
    ranges = tables.ranges()
    waits = tables.waits()
    (work, calls, ranges, waits), left_out = _sound((work, calls, ranges, waits))
    times = [rows["start"] for rows in (work, calls, ranges, waits) if len(rows["start"])]
    if not times:
        return []
    base = int(min(column.min() for column in times))
    warnings = (f"{left_out} events had a time beyond reason and were left out",) * bool(left_out)
    devices = sorted(set(work["device"].tolist()))
    whole = _Rows(
        work=work,
        calls=calls,
        ranges=ranges,
        waits=waits,
        base=base,
        several=len(devices) > 1,
        ranks=ranks,
        warnings=warnings,
    )
    found = [_trace(path, tables, whole, device) for device in devices or [None]]
    if _of_own_processes(work, devices):
        found = [
            replace(trace, file=named_part(str(path), f"GPU {device}"))
            for trace, device in zip(found, devices, strict=True)
        ]
    return [replace(trace, record_gpu=record_gpu) for trace in found]


def _of_own_processes(work: Table, devices: Sequence[int]) -> bool:
    """Does each of several GPUs work for processes of its own, as the ranks of a job do?"""
    pairs = np.unique(np.stack((work["process"], work["device"])), axis=1)
    return len(devices) > 1 and len(np.unique(pairs[0])) == pairs.shape[1]


def _sound(tables: Sequence[Table]) -> tuple[list[Table], int]:
    """The tables without the rows that lie more than a year from all others, and how many."""
    starts = [table["start"].astype(np.float64) for table in tables]
    together = np.concatenate(starts)
    if not len(together):
        return list(tables), 0
    middle = median(together)
    kept, left_out = [], 0
    for table, start in zip(tables, starts, strict=True):
        near = (np.abs(start - middle) <= _LONGEST_NS) & (
            np.abs(table["end"].astype(np.float64) - middle) <= _LONGEST_NS
        )
        left_out += len(near) - int(near.sum())
        kept.append(picked(table, near) if not near.all() else table)
    return kept, left_out


def _trace(path: Path, tables: WholeFile, rows: _Rows, device: int | None) -> Trace:
    """The part of the file that belongs to one GPU: its work, and its processes' host side."""
    work = rows.work
    mine = work["device"] == device if device is not None else np.zeros(0, bool)
    processes = np.unique(work["process"][mine])
    alone = all(
        len(np.unique(work["device"][work["process"] == process])) == 1 for process in processes
    )

    def of_processes(table: Table) -> Table:
        if device is None:
            return table
        return picked(table, np.isin(table["process"], processes))

    waits = of_processes(rows.waits)
    if not alone:
        waits = picked(waits, waits["device"] == device)
    calls, ranges = of_processes(rows.calls), of_processes(rows.ranges)
    fact = None if device is None else tables.device(device)
    gpu = _gpu_events(picked(work, mine), rows.base, fact.num_sms if fact else None)
    host = _host_events(calls, ranges, rows.base)
    events = len(gpu) + len(host) + len(waits["start"])
    trace = replace(
        empty_trace(str(path)),
        rank=device if rows.several else None,
        base_us=rows.base / 1e3,
        devices=() if fact is None else (fact,),
        warnings=(*((rows.ranks,) if rows.several else ()), *rows.warnings),
        names=tuple(tables.names),
        threads=tuple(tables.threads),
        thread_names=tables.thread_names(),
        num_events=events,
        raw_bytes=path.stat().st_size,
        gpu=gpu,
        host=host,
        sync=_sync_records(waits, rows.base),
    )
    return _with_operators(trace)


def _host_events(calls: Table, ranges: Table, base: int) -> HostEvents:
    many = (len(calls["start"]), len(ranges["start"]))

    def both(key: str, default: int = ABSENT) -> Ints:
        parts = [
            table.get(key, np.full(size, default, np.int64))
            for table, size in zip((calls, ranges), many, strict=True)
        ]
        return np.concatenate(parts)

    start, end = both("start"), both("end")
    correlation = np.concatenate((unique_column(calls), np.full(many[1], ABSENT, dtype=np.int64)))
    columns: dict[str, Any] = {
        "start_us": (start - base) / 1e3, "duration_us": (end - start) / 1e3,
        "name": both("name"), "category": both("category"), "thread": both("thread"),
        "correlation": correlation, "external_id": both("operator"), "sequence": both("sequence"),
    }  # fmt: skip
    return filled_table(HostEvents, columns)


def _sync_records(waits: Table, base: int) -> SyncRecords:
    columns = {
        "start_us": (waits["start"] - base) / 1e3,
        "duration_us": (waits["end"] - waits["start"]) / 1e3,
        "name": waits["name"], "device": waits["device"], "stream": waits["stream"],
        "correlation": unique_column(waits), "wait_on_record": waits["record"],
    }  # fmt: skip
    return filled_table(SyncRecords, columns)


def _gpu_events(work: Table, base: int, num_sms: int | None) -> GpuEvents:
    blocks = work["blocks"]
    columns: dict[str, Any] = {
        "start_us": (work["start"] - base) / 1e3,
        "duration_us": np.maximum(work["end"] - work["start"], 0) / 1e3,
        "name": work["name"], "kind": work["kind"], "device": work["device"],
        "stream": work["stream"], "correlation": unique_column(work), "graph": work["graph"],
        "bytes": work["bytes"], "blocks": blocks, "threads_per_block": work["threads"],
        "registers_per_thread": work["registers"], "shared_bytes": work["shared"],
    }  # fmt: skip
    if num_sms:
        columns["blocks_per_sm"] = np.where(blocks > 0, blocks / num_sms, np.nan)
    return filled_table(GpuEvents, columns)


def _with_operators(trace: Trace) -> Trace:
    """The trace with the number of the torch operator that was open at each launch."""
    host, calls = trace.host, launch_rows(trace)
    known = np.flatnonzero(calls != ABSENT)
    inside = innermost_at(
        trace,
        host.thread[calls[known]].astype(np.int64),
        host.start_us[calls[known]],
        host.category == Category.OPERATOR,
    )
    found = np.full(len(trace.gpu), ABSENT, np.int64)
    found[known[inside != ABSENT]] = host.external_id[inside[inside != ABSENT]]
    return replace(trace, gpu=replace(trace.gpu, external_id=found))


def named_range(written: str) -> tuple[str, Category, int, int]:
    """Name, category, number and sequence number of a range on the host.

    torch's `emit_nvtx` writes an operator and its number into the name.

    >>> named_range("aten::to, seq = 3, op_id = 7")
    ('aten::to', <Category.OPERATOR: 0>, 7, 3)
    """
    found = _TORCH_RANGE.match(written)
    if found is None:
        return written, Category.ANNOTATION, ABSENT, ABSENT
    sequence = int(found["seq"]) if found["seq"] else ABSENT
    return found["name"], Category.OPERATOR, int(found["id"]), sequence


def unique_number(correlation: int, process: int) -> int:
    """A correlation with its process in the upper half."""
    if correlation == ABSENT:
        return ABSENT
    return (((process >> 24) & _THREAD) << 32) | (correlation & 0xFFFFFFFF)


def unique_column(table: Table) -> Ints:
    """Correlations with the process in their upper half."""
    correlation, process = table["correlation"], table["process"]
    whole = (((process >> 24) & _THREAD) << 32) | (correlation & 0xFFFFFFFF)
    return np.where(correlation == ABSENT, ABSENT, whole).astype(np.int64)


def table_of(keys: Sequence[str], rows: Iterable[Sequence[int]]) -> Table:
    """Rows of whole numbers as columns."""
    matrix = np.array(list(rows), dtype=np.int64).reshape(-1, len(keys))
    return {key: matrix[:, index] for index, key in enumerate(keys)}


def picked(table: Table, which: Any) -> Table:
    """Some rows of a table, by number or mask."""
    return {key: column[which] for key, column in table.items()}
