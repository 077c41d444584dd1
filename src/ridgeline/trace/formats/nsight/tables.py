"""The tables of an Nsight Systems export as columns of whole numbers, names interned.

The schema is in the file itself (NVIDIA, "Nsight Systems User Guide", SQLite Schema Reference):
`CUPTI_ACTIVITY_KIND_KERNEL | MEMCPY | MEMSET | GRAPH_TRACE` are the GPU work, `…_RUNTIME` the API
calls (runtime and driver), `…_SYNCHRONIZATION` CUPTI's waits, `NVTX_EVENTS` the ranges, `StringIds`
the names. A table or column that is not there is a column of "does not say". Times stay the
nanoseconds of the file; the package makes traces of them.

    correlationId   unique within a process only, so the process is put into the upper bits
    globalTid       thread in bits 0 … 23, process in 24 … 47, machine above (globalPid: no thread)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.trace.columns import ABSENT, Category, Kind, TraceDevice
from ridgeline.trace.per_gpu import Table, named_range, picked, table_of, unique_number
from ridgeline.trace.sqlite_file import tables_of

if TYPE_CHECKING:
    import sqlite3

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


class NsightTables:
    """The tables of one open file, and the names and threads that were met in them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.tables = tables_of(connection)
        self.names: dict[str, int] = {}
        self.threads: dict[tuple[int, int], int] = {}
        self.strings: dict[int, str] = {}
        if "StringIds" in self.tables:
            rows = connection.execute("SELECT id, value FROM StringIds")
            self.strings = {int(key): str(value) for key, value in rows}

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

    def gpu_work(self) -> Table:
        """Kernels, copies, fills and graphs that were traced as a whole, by start."""
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
        work = table_of(keys, rows)
        self._tell_gpus_apart(work)
        return picked(work, np.lexsort((work["stream"], work["start"])))

    def _tell_gpus_apart(self, table: Table) -> None:
        """Number GPUs by the machine where processes that see one each call all of them 0."""
        known = ("pid", "cudaId", "gpuId")
        seen = {
            (process, device): gpu
            for process, device, gpu in self._select("TARGET_INFO_CUDA_DEVICE", known, key="pid")
        }
        process, device = (table["process"] >> 24) & _THREAD, table["device"]
        for number in np.unique(device).tolist():
            owners = np.unique(process[device == number]).tolist()
            gpus = [seen[owner, number] for owner in owners if (owner, number) in seen]
            if len(set(gpus)) == len(owners) > 1:
                for owner, gpu in zip(owners, gpus, strict=True):
                    table["device"][(process == owner) & (device == number)] = gpu
                return

    def calls(self) -> Table:
        """Calls of the CUDA runtime and driver."""
        columns = ("start", "end", "globalTid", "correlationId", "nameId")
        rows = []
        for start, end, thread, correlation, name_id in self._select(f"{_PREFIX}RUNTIME", columns):
            name = _VERSION.sub("", self.strings.get(name_id, f"call {name_id}"))
            driver = name.startswith("cu") and not name.startswith("cuda")
            kind = Category.DRIVER if driver else Category.RUNTIME
            rows.append((start, max(start, end), thread & _PROCESS, correlation, self._name(name),
                         self._thread(thread), kind))  # fmt: skip
        keys = ("start", "end", "process", "correlation", "name", "thread", "category")
        return table_of(keys, rows)

    def ranges(self) -> Table:
        """Ranges of NVTX that have an end; marks and domains are no time."""
        columns = ("start", "end", "globalTid", "text", "textId")
        rows = []
        where = 'WHERE "end" IS NOT NULL' if "NVTX_EVENTS" in self.tables else ""
        for start, end, thread, text, text_id in self._select("NVTX_EVENTS", columns, where):
            written = text if isinstance(text, str) else self.strings.get(text_id, "")
            name, kind, operator, sequence = named_range(written)
            rows.append((start, max(start, end), thread & _PROCESS, self._name(name),
                         self._thread(thread), kind, operator, sequence))  # fmt: skip
        keys = ("start", "end", "process", "name", "thread", "category", "operator", "sequence")
        return table_of(keys, rows)

    def waits(self) -> Table:
        """CUPTI's records of synchronisation, with the event that was waited for."""
        columns = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId", "syncType",
                   "eventId", "eventSyncId")  # fmt: skip
        recorded: dict[tuple[int, int], int] = {}
        if f"{_PREFIX}CUDA_EVENT" in self.tables:
            table = f"{_PREFIX}CUDA_EVENT"
            known = ("globalPid", "eventSyncId", "correlationId")
            for process, event, correlation in self._select(table, known, key="eventSyncId"):
                if ABSENT not in (process, event, correlation):
                    recorded[process, event] = unique_number(correlation, process)
        rows = []
        for row in self._select(f"{_PREFIX}SYNCHRONIZATION", columns):
            start, end, process, device, stream, correlation, kind, _, event = row
            name = self._name(_SYNC_KINDS.get(kind, "Sync"))
            stream = ABSENT if stream in (0xFFFFFFFF, ABSENT) else stream
            record = recorded.get((process, event), ABSENT)
            rows.append((start, max(start, end), process, device, stream, correlation, name,
                         record))  # fmt: skip
        keys = ("start", "end", "process", "device", "stream", "correlation", "name", "record")
        waits = table_of(keys, rows)
        self._tell_gpus_apart(waits)
        return waits

    def device(self, index: int) -> TraceDevice:
        """What the export says of a GPU."""
        nothing = TraceDevice(index=index, name="")
        if "TARGET_INFO_GPU" not in self.tables:
            return nothing
        cursor = self.connection.execute("SELECT * FROM TARGET_INFO_GPU")
        keys = [column[0] for column in cursor.description]
        for values in cursor.fetchall():
            row = dict(zip(keys, values, strict=True))
            if row.get("cuDevice", row.get("id")) == index:
                return TraceDevice(
                    index=index,
                    name=str(row.get("name") or ""),
                    num_sms=row.get("smCount") or None,
                    memory_bytes=row.get("totalMemory") or None,
                )
        return nothing

    def thread_names(self) -> dict[int, str]:
        """Names of the threads that were met, by their number in `threads`."""
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


def _split(thread: int) -> tuple[int, int]:
    return ((thread >> 24) & _THREAD, thread & _THREAD)
