"""Nsight Systems exports (`nsys export --type sqlite`) as traces: one `Trace` per GPU.

What is in the file is read in `tables.py`; here it is divided among GPUs (each with the host
side of its processes) and becomes the columns of a `Trace`, nanoseconds becoming microseconds since
the first event of the file. A GPU event belongs to the torch operator whose NVTX range was open on
the launching thread.

The file is opened read-only and immutable: nothing is written beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ridgeline.errors import InputError
from ridgeline.trace.columns import (
    ABSENT,
    Category,
    GpuEvents,
    HostEvents,
    Ints,
    SyncRecords,
    Trace,
    empty_trace,
    filled_table,
)
from ridgeline.trace.formats import FileFormat
from ridgeline.trace.formats.nsight.tables import NsightTables, Table, picked, unique_column
from ridgeline.trace.host_calls import innermost_at, launch_rows

SQLITE_MAGIC = b"SQLite format 3\0"
_WARNINGS = ("ranks are GPU numbers: nsys does not record torch's",)


def read_nsight(path: Path) -> list[Trace]:
    """One trace per GPU of the export, lowest number first.

    Raises:
        InputError: not an export, or one without GPU work and without API calls.
    """
    import sqlite3

    try:
        location = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        connection = sqlite3.connect(location, uri=True)
        try:
            return _traces(path, NsightTables(connection))
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise InputError(f"{path}: not a whole sqlite export of nsys ({error})") from None
    except (ValueError, OverflowError, TypeError) as error:
        raise InputError(f"{path}: a column of the export holds no numbers ({error})") from None


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


def _traces(path: Path, tables: NsightTables) -> list[Trace]:
    work = tables.gpu_work()
    calls = tables.calls()
    ranges = tables.ranges()
    waits = tables.waits()
    times = [rows["start"] for rows in (work, calls, ranges, waits) if len(rows["start"])]
    if not times:
        raise InputError(
            f"{path}: no CUDA work, API call or NVTX range in it; "
            "profile with: nsys profile --trace cuda,nvtx"
        )
    base = int(min(column.min() for column in times))
    devices = sorted(set(work["device"].tolist()))
    whole = _Rows(
        work=work, calls=calls, ranges=ranges, waits=waits, base=base, several=len(devices) > 1
    )
    return [_trace(path, tables, whole, device) for device in devices or [None]]


def _trace(path: Path, tables: NsightTables, rows: _Rows, device: int | None) -> Trace:
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
        warnings=_WARNINGS if rows.several else (),
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


FORMAT = FileFormat(
    name="Nsight Systems",
    suffixes=(".sqlite",),
    refused={
        suffix: f"export it first: nsys export --type sqlite FILE{suffix}"
        for suffix in (".nsys-rep", ".qdrep")
    },
    sniff=lambda path, start: start == SQLITE_MAGIC or path.suffix == ".sqlite",
    read=lambda path, details: read_nsight(path),  # noqa: ARG005 - it has neither shapes nor stacks
)
