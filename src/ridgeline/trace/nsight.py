"""Nsight Systems exports (`nsys export --type sqlite`) as traces: one `Trace` per GPU.

The schema is in the file itself (NVIDIA, "Nsight Systems User Guide", SQLite Schema Reference):
`CUPTI_ACTIVITY_KIND_KERNEL | MEMCPY | MEMSET | GRAPH_TRACE` are the GPU work, `…_RUNTIME` the API
calls (runtime and driver), `…_SYNCHRONIZATION` CUPTI's waits, `NVTX_EVENTS` the ranges, `StringIds`
the names. A table or column that is not there is a column of "does not say". Nanoseconds become
microseconds since the first event of the file.

    correlationId   unique within a process only, so the process is put into the upper bits
    globalTid       thread in bits 0 … 23, process in 24 … 47, machine above (globalPid: no thread)
    NVTX            torch's `emit_nvtx` writes `aten::to, op_id = 7`: an operator and its number

The file is opened read-only and immutable: nothing is written beside it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ridgeline.errors import InputError
from ridgeline.trace.columns import (
    ABSENT,
    Category,
    Device,
    GpuEvents,
    HostEvents,
    Ints,
    Kind,
    SyncRecords,
    Trace,
    column_types,
    empty_gpu,
    empty_memory,
)

_PROCESS = ~0xFFFFFF
_THREAD = 0xFFFFFF
_PREFIX = "CUPTI_ACTIVITY_KIND_"
_COPY_KINDS = {
    0: "Unknown", 1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA",
    8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "Unified HtoD", 12: "Unified DtoH", 13: "Unified DtoD",
}  # fmt: skip
"""ENUM_CUDA_MEMCPY_OPER in Kineto's words."""
_MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed",
                 5: "Device Static", 6: "Managed Static"}  # fmt: skip
_SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_VERSION = re.compile(r"_(v\d+|ptsz|ptds)(_(ptsz|ptds))?(_v\d+)?$")
_TORCH_RANGE = re.compile(r"^(?P<name>.*?)(?:, seq = (?P<seq>\d+))?, op_id = (?P<id>\d+)")


def read_nsight(path: Path) -> list[Trace]:
    """One trace per GPU of the export, lowest number first.

    Raises:
        InputError: not an export, or one without GPU work and without API calls.
    """
    if path.suffix == ".nsys-rep":
        raise InputError(f"{path}: a report of nsys; run: nsys export --type sqlite {path}")
    if not path.exists():
        raise InputError(f"{path}: no such file")
    try:
        location = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        connection = sqlite3.connect(location, uri=True)
        try:
            return _Export(connection, path).traces()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise InputError(f"{path}: not a whole sqlite export of nsys ({error})") from None
    except (ValueError, OverflowError, TypeError) as error:
        raise InputError(f"{path}: a column of the export holds no numbers ({error})") from None


class _Export:
    """One open file: names interned as they are met."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection = connection
        self.path = path
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        self.tables = {str(name) for (name,) in connection.execute(query)}
        self.names: dict[str, int] = {}
        self.threads: dict[tuple[int, int], int] = {}
        self.warnings: list[str] = []
        self.strings: dict[int, str] = {}
        if "StringIds" in self.tables:
            rows = connection.execute("SELECT id, value FROM StringIds")
            self.strings = {int(key): str(value) for key, value in rows}

    def traces(self) -> list[Trace]:
        work = self._gpu_rows()
        calls = self._call_rows()
        ranges = self._range_rows()
        waits = self._sync_rows()
        times = [rows["start"] for rows in (work, calls, ranges, waits) if len(rows["start"])]
        if not times:
            raise InputError(
                f"{self.path}: no CUDA work, API call or NVTX range in it; "
                "profile with: nsys profile --trace cuda,nvtx"
            )
        base = int(min(column.min() for column in times))
        devices = sorted(set(work["device"].tolist()))
        if len(devices) > 1:
            self.warnings.append("ranks are GPU numbers: nsys does not record torch's")
        whole = _Rows(work=work, calls=calls, ranges=ranges, waits=waits, base=base)
        return [self._trace(device, devices, whole) for device in devices or [None]]

    def _trace(self, device: int | None, devices: Sequence[int], rows: _Rows) -> Trace:
        """The part of the file that belongs to one GPU: its work, and its processes' host side."""
        work = rows.work
        mine = work["device"] == device if device is not None else np.zeros(0, bool)
        processes = np.unique(work["process"][mine])
        alone = all(
            len(np.unique(work["device"][work["process"] == process])) == 1 for process in processes
        )

        def of_processes(table: dict[str, Ints]) -> dict[str, Ints]:
            if device is None:
                return table
            return _picked(table, np.isin(table["process"], processes))

        waits = of_processes(rows.waits)
        if not alone:
            waits = _picked(waits, waits["device"] == device)
        calls, ranges = of_processes(rows.calls), of_processes(rows.ranges)
        gpu = _gpu_events(_picked(work, mine), rows.base, self._sm_count(device))
        host = self._host_events(calls, ranges, rows.base)
        facts = () if device is None else (self._device(device),)
        events = len(gpu) + len(host) + len(waits["start"])
        return Trace(
            file=str(self.path),
            rank=device if len(devices) > 1 else None,
            base_us=rows.base / 1e3,
            nanosecond_stamps=True,
            devices=facts,
            warnings=tuple(self.warnings),
            names=tuple(self.names),
            threads=tuple(self.threads),
            thread_names=self._thread_names(),
            num_events=events,
            raw_bytes=self.path.stat().st_size,
            gpu=replace(gpu, external_id=_innermost(gpu, calls, ranges)),
            host=host,
            sync=self._sync_records(waits, rows.base),
            memory=empty_memory(),
            gpu_annotations=empty_gpu(),
        )

    # -- rows of the tables ---------------------------------------------------------------------

    def _select(
        self, table: str, columns: Sequence[str], where: str = "", key: str = "start"
    ) -> list[Sequence[Any]]:
        """Rows of a table, "does not say" where a column is missing; none without `key`."""
        if table not in self.tables:
            return []
        known = {str(row[1]) for row in self.connection.execute(f"PRAGMA table_info({table})")}
        if key not in known:
            return []
        chosen = ", ".join(
            f'ifnull("{name}", {ABSENT})' if name in known else str(ABSENT) for name in columns
        )
        query = f"SELECT {chosen} FROM {table} {where}"  # noqa: S608 -- names are ours
        return self.connection.execute(query).fetchall()

    def _gpu_rows(self) -> dict[str, Ints]:
        shared = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphId")
        rows: list[tuple[int, ...]] = []
        kernel = (
            *shared, "demangledName", "shortName", "registersPerThread", "gridX", "gridY", "gridZ",
            "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory",
        )  # fmt: skip
        for row in self._select(f"{_PREFIX}KERNEL", kernel):
            name = self.strings.get(row[7]) or self.strings.get(row[8]) or f"kernel {row[7]}"
            blocks, threads = row[10] * row[11] * row[12], row[13] * row[14] * row[15]
            known = row[10] > 0
            rows.append((
                *row[:7], self._name(name), Kind.KERNEL, ABSENT, blocks if known else ABSENT,
                threads if known else ABSENT, row[9], max(0, row[16]) + max(0, row[17]),
            ))  # fmt: skip
        nothing = (ABSENT,) * 4
        for row in self._select(
            f"{_PREFIX}MEMCPY", (*shared, "copyKind", "srcKind", "dstKind", "bytes")
        ):
            source, target = (_MEMORY_KINDS.get(kind, "Unknown") for kind in row[8:10])
            name = f"Memcpy {_COPY_KINDS.get(row[7], 'Unknown')} ({source} -> {target})"
            rows.append((*row[:7], self._name(name), Kind.MEMCPY, row[10], *nothing))
        for row in self._select(f"{_PREFIX}MEMSET", (*shared, "memKind", "bytes")):
            name = f"Memset ({_MEMORY_KINDS.get(row[7], 'Unknown')})"
            rows.append((*row[:7], self._name(name), Kind.MEMSET, row[8], *nothing))
        for row in self._select(f"{_PREFIX}GRAPH_TRACE", shared):
            graph = self._name(f"CUDA graph {row[6]}")
            rows.append((*row[:7], graph, Kind.KERNEL, ABSENT, *nothing))
        keys = (
            "start", "end", "device", "stream", "correlation", "process", "graph", "name", "kind",
            "bytes", "blocks", "threads", "registers", "shared",
        )  # fmt: skip
        table = _table(keys, rows)
        return _picked(table, np.lexsort((table["stream"], table["start"])))

    def _call_rows(self) -> dict[str, Ints]:
        columns = ("start", "end", "globalTid", "correlationId", "nameId")
        rows = []
        for start, end, thread, correlation, name_id in self._select(f"{_PREFIX}RUNTIME", columns):
            name = _VERSION.sub("", self.strings.get(name_id, f"call {name_id}"))
            driver = name.startswith("cu") and not name.startswith("cuda")
            kind = Category.DRIVER if driver else Category.RUNTIME
            rows.append((start, max(start, end), thread & _PROCESS, correlation, self._name(name),
                         self._thread(thread), kind))  # fmt: skip
        keys = ("start", "end", "process", "correlation", "name", "thread", "category")
        return _table(keys, rows)

    def _range_rows(self) -> dict[str, Ints]:
        """Ranges of NVTX that have an end; marks and domains are no time."""
        columns = ("start", "end", "globalTid", "text", "textId")
        rows = []
        where = 'WHERE "end" IS NOT NULL' if "NVTX_EVENTS" in self.tables else ""
        for start, end, thread, text, text_id in self._select("NVTX_EVENTS", columns, where):
            written = text if isinstance(text, str) else self.strings.get(text_id, "")
            found = _TORCH_RANGE.match(written)
            name = found["name"] if found else written
            operator = int(found["id"]) if found else ABSENT
            sequence = int(found["seq"]) if found and found["seq"] else ABSENT
            kind = Category.OPERATOR if found else Category.ANNOTATION
            rows.append((start, max(start, end), thread & _PROCESS, self._name(name),
                         self._thread(thread), kind, operator, sequence))  # fmt: skip
        keys = ("start", "end", "process", "name", "thread", "category", "operator", "sequence")
        return _table(keys, rows)

    def _sync_rows(self) -> dict[str, Ints]:
        columns = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId", "syncType",
                   "eventId", "eventSyncId")  # fmt: skip
        recorded: dict[tuple[int, int], int] = {}
        if f"{_PREFIX}CUDA_EVENT" in self.tables:
            table = f"{_PREFIX}CUDA_EVENT"
            known = ("globalPid", "eventSyncId", "correlationId")
            for process, event, correlation in self._select(table, known, key="eventSyncId"):
                if ABSENT not in (process, event, correlation):
                    recorded[process, event] = _unique(correlation, process)
        rows = []
        for row in self._select(f"{_PREFIX}SYNCHRONIZATION", columns):
            start, end, process, device, stream, correlation, kind, _, event = row
            name = self._name(_SYNC_KINDS.get(kind, "Sync"))
            stream = ABSENT if stream in (0xFFFFFFFF, ABSENT) else stream
            record = recorded.get((process, event), ABSENT)
            rows.append((start, max(start, end), process, device, stream, correlation, name,
                         record))  # fmt: skip
        keys = ("start", "end", "process", "device", "stream", "correlation", "name", "record")
        return _table(keys, rows)

    # -- tables of the trace --------------------------------------------------------------------

    def _host_events(
        self, calls: dict[str, Ints], ranges: dict[str, Ints], base: int
    ) -> HostEvents:
        many = (len(calls["start"]), len(ranges["start"]))

        def both(key: str, default: int = ABSENT) -> Ints:
            parts = [
                table.get(key, np.full(size, default, np.int64))
                for table, size in zip((calls, ranges), many, strict=True)
            ]
            return np.concatenate(parts)

        start, end = both("start"), both("end")
        correlation = np.concatenate(
            (_unique_column(calls), np.full(many[1], ABSENT, dtype=np.int64))
        )
        absent = np.full(sum(many), ABSENT, np.int32)
        types = column_types(HostEvents)
        columns: dict[str, Any] = {
            "start_us": (start - base) / 1e3, "duration_us": (end - start) / 1e3,
            "name": both("name"), "category": both("category"), "thread": both("thread"),
            "correlation": correlation, "external_id": both("operator"), "shape": absent,
            "stack": absent, "sequence": both("sequence"),
        }  # fmt: skip
        return HostEvents(**{key: columns[key].astype(kind) for key, kind in types.items()})

    def _sync_records(self, waits: dict[str, Ints], base: int) -> SyncRecords:
        columns = {
            "start_us": (waits["start"] - base) / 1e3,
            "duration_us": (waits["end"] - waits["start"]) / 1e3,
            "name": waits["name"], "device": waits["device"], "stream": waits["stream"],
            "correlation": _unique_column(waits),
            "wait_on_stream": np.full(len(waits["start"]), ABSENT),
            "wait_on_record": waits["record"],
        }  # fmt: skip
        types = column_types(SyncRecords)
        return SyncRecords(**{key: columns[key].astype(kind) for key, kind in types.items()})

    def _sm_count(self, device: int | None) -> int | None:
        return None if device is None else self._device(device).num_sms

    def _device(self, index: int) -> Device:
        nothing = Device(index=index, name="")
        if "TARGET_INFO_GPU" not in self.tables:
            return nothing
        cursor = self.connection.execute("SELECT * FROM TARGET_INFO_GPU")
        keys = [column[0] for column in cursor.description]
        for values in cursor.fetchall():
            row = dict(zip(keys, values, strict=True))
            if row.get("cuDevice", row.get("id")) == index:
                major, minor = row.get("computeMajor"), row.get("computeMinor")
                return Device(
                    index=index,
                    name=str(row.get("name") or ""),
                    num_sms=row.get("smCount") or None,
                    memory_bytes=row.get("totalMemory") or None,
                    compute_capability=None if major is None else f"{major}.{minor}",
                )
        return nothing

    def _thread_names(self) -> dict[int, str]:
        names = {}
        if "ThreadNames" in self.tables:
            for name, thread in self.connection.execute(
                'SELECT "nameId", "globalTid" FROM ThreadNames WHERE "globalTid" IS NOT NULL'
            ):
                index = self.threads.get(_split(thread))
                if index is not None and name in self.strings:
                    names[index] = self.strings[name]
        return names

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _thread(self, thread: int) -> int:
        return self.threads.setdefault(_split(thread), len(self.threads))


class _Rows:
    """The rows of one file, all GPUs together; times in whole nanoseconds."""

    def __init__(
        self,
        *,
        work: dict[str, Ints],
        calls: dict[str, Ints],
        ranges: dict[str, Ints],
        waits: dict[str, Ints],
        base: int,
    ) -> None:
        self.work, self.calls, self.ranges, self.waits = work, calls, ranges, waits
        self.base = base


def _split(thread: int) -> tuple[int, int]:
    return ((thread >> 24) & _THREAD, thread & _THREAD)


def _unique(correlation: int, process: int) -> int:
    if correlation == ABSENT:
        return ABSENT
    return (((process >> 24) & _THREAD) << 32) | (correlation & 0xFFFFFFFF)


def _unique_column(table: dict[str, Ints]) -> Ints:
    """Correlations with the process in their upper half."""
    correlation, process = table["correlation"], table["process"]
    whole = (((process >> 24) & _THREAD) << 32) | (correlation & 0xFFFFFFFF)
    return np.where(correlation == ABSENT, ABSENT, whole).astype(np.int64)


def _table(keys: Sequence[str], rows: Iterable[Sequence[int]]) -> dict[str, Ints]:
    matrix = np.array(list(rows), dtype=np.int64).reshape(-1, len(keys))
    return {key: matrix[:, index] for index, key in enumerate(keys)}


def _picked(table: dict[str, Ints], which: Any) -> dict[str, Ints]:
    return {key: column[which] for key, column in table.items()}


def _gpu_events(work: dict[str, Ints], base: int, num_sms: int | None) -> GpuEvents:
    size = len(work["start"])
    blocks = work["blocks"]
    per_sm = np.where(blocks > 0, blocks / num_sms, np.nan) if num_sms else np.full(size, np.nan)
    columns: dict[str, Any] = {
        "start_us": (work["start"] - base) / 1e3,
        "duration_us": np.maximum(work["end"] - work["start"], 0) / 1e3,
        "name": work["name"], "kind": work["kind"], "device": work["device"],
        "stream": work["stream"], "correlation": _unique_column(work),
        "external_id": np.full(size, ABSENT), "graph": work["graph"], "bytes": work["bytes"],
        "blocks": blocks, "threads_per_block": work["threads"], "blocks_per_sm": per_sm,
        "occupancy_percent": np.full(size, np.nan), "registers_per_thread": work["registers"],
        "shared_bytes": work["shared"], "collective": np.full(size, ABSENT),
    }  # fmt: skip
    types = column_types(GpuEvents)
    return GpuEvents(**{key: columns[key].astype(kind) for key, kind in types.items()})


def _innermost(gpu: GpuEvents, calls: dict[str, Ints], ranges: dict[str, Ints]) -> Ints:
    """The number of the torch operator that was open on the launching thread at each launch."""
    correlation = _unique_column(calls)
    at = dict(zip(correlation.tolist(), range(len(correlation)), strict=True))
    launches = np.array([at.get(number, ABSENT) for number in gpu.correlation.tolist()], np.int64)
    found = np.full(len(gpu), ABSENT, np.int64)
    torch = ranges["operator"] != ABSENT
    for thread in np.unique(ranges["thread"][torch]):
        own = torch & (ranges["thread"] == thread)
        order = np.lexsort((-ranges["end"][own], ranges["start"][own]))
        table = _picked(_picked(ranges, own), order)
        here = np.flatnonzero((launches != ABSENT) & (calls["thread"][launches] == thread))
        here = here[np.argsort(calls["start"][launches[here]], kind="stable")]
        stack: list[tuple[int, int]] = []
        following = 0
        starts, ends = table["start"].tolist(), table["end"].tolist()
        numbers = table["operator"].tolist()
        for event in here.tolist():
            moment = int(calls["start"][launches[event]])
            while following < len(starts) and starts[following] <= moment:
                while stack and stack[-1][0] <= starts[following]:
                    stack.pop()
                stack.append((ends[following], numbers[following]))
                following += 1
            while stack and stack[-1][0] <= moment:
                stack.pop()
            if stack:
                found[event] = stack[-1][1]
    return found
