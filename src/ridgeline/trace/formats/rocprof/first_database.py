"""The database of rocprof, the profiler before rocprofv3: one SQLite table per kind of record.

`rocprof --hip-trace -o results.csv ./program` leaves `results.db` beside its tables of text.

    HIP, HSA    calls: BeginNs, EndNs, pid, tid, Name, args, Index
    OPS, COPY   what HIP started on a GPU: dev-id, queue-id, Name; Index is that of the call
    A           kernels as the queues saw them (without --hip-trace): KernelName, gpu-id, queue-id,
                grd and wgr in work items, DispatchNs
    rocTX       ranges that the program named

Source: github.com/ROCm/rocprofiler, bin/tblextr.py and bin/sqlitedb.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.errors import InputError
from ridgeline.trace.columns import ABSENT
from ridgeline.trace.file_rows import FileRows
from ridgeline.trace.formats.rocprof.hsa import block_counts
from ridgeline.trace.sqlite_file import opened, tables_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

_KERNELS, _STARTED, _COPIES = "A", "OPS", "COPY"
_CALLS = ("HIP", "HSA")
_RANGES = "rocTX"
DISPATCH = "hsa_dispatch"
"""What the table of HSA calls holds in place of calls, under a process that is none."""
_SIZE = re.compile(r"sizeBytes\((\d+)\)")
_DIRECTION = re.compile(r"^Copy(Host|Device|Peer)\w*To(Host|Device|Peer)")
NO_WORK = re.compile(r"^<(barrier|marker)", re.IGNORECASE)

Row = dict[str, Any]


def read_first_database(path: Path) -> FileRows:
    """Everything that a database of rocprof holds.

    Raises:
        InputError: it is damaged, or its tables are not those of rocprof.
    """
    with opened(path, "a whole database of rocprof") as connection:
        known = tables_of(connection)
        try:
            return _filled(connection, known)
        except KeyError as error:
            raise InputError(
                f"{path}: no database of rocprof: a table in it has no column {error}"
            ) from None


def _filled(connection: sqlite3.Connection, known: set[str]) -> FileRows:
    found, sizes = FileRows(), {}
    for table in (name for name in _CALLS if name in known):
        for row in _rows(connection, table):
            if row["Name"] == DISPATCH:
                continue
            if (size := _SIZE.search(str(row.get("args")))) is not None:
                sizes[row["Index"]] = int(size[1])
            found.add_call(
                name=str(row["Name"]), start=row["BeginNs"], end=row["EndNs"],
                process=row["pid"], thread=row["tid"], correlation=_link(row, table),
            )  # fmt: skip
    started = list(_rows(connection, _STARTED)) if _STARTED in known else []
    for row in started:
        if not NO_WORK.match(str(row["Name"])):
            _add_started(found, row)
    if not started and _KERNELS in known:
        for row in _rows(connection, _KERNELS):
            _add_kernel(found, row)
    for row in _rows(connection, _COPIES) if _COPIES in known else ():
        found.add_copy(
            name=first_copy_name(str(row["Name"])), start=row["BeginNs"], end=row["EndNs"],
            device=row["dev-id"], stream=_queue(row), correlation=_link(row, "HIP"),
            process=row["pid"], size=sizes.get(row["Index"], ABSENT),
        )  # fmt: skip
    for row in _rows(connection, _RANGES) if _RANGES in known else ():
        found.add_range(
            written=str(row["Name"]), start=row["BeginNs"], end=row["EndNs"],
            process=row["pid"], thread=row["tid"],
        )  # fmt: skip
    return found


def _rows(connection: sqlite3.Connection, table: str) -> Iterator[Row]:
    cursor = connection.execute(f'SELECT * FROM "{table}"')  # noqa: S608 - a name from above
    columns = [column for column, *_ in cursor.description]
    return (dict(zip(columns, row, strict=True)) for row in cursor)


def _add_started(found: FileRows, row: Row) -> None:
    found.add_kernel(
        name=kernel_name(row["Name"]), start=row["BeginNs"], end=row["EndNs"],
        device=row["dev-id"], stream=_queue(row), correlation=_link(row, "HIP"),
        process=row["pid"],
    )  # fmt: skip


def _add_kernel(found: FileRows, row: Row) -> None:
    """Add a kernel and the moment at which it was put into its queue, which stands for its call."""
    blocks, threads = block_counts((row["grd"],), (row["wgr"],))
    link = _link(row, _KERNELS)
    found.add_kernel(
        name=kernel_name(row["KernelName"]), start=row["BeginNs"], end=row["EndNs"],
        device=row["gpu-id"], stream=row["queue-id"], correlation=link, process=row["pid"],
        blocks=blocks, threads=threads, shared=row["lds"],
    )  # fmt: skip
    found.add_call(
        name=DISPATCH, start=row["DispatchNs"], end=row["DispatchNs"], process=row["pid"],
        thread=row["tid"], correlation=link,
    )  # fmt: skip


def kernel_name(written: object) -> str:
    """The name of a kernel without what says that it is one.

    >>> kernel_name('"add(float*) [clone .kd]"')
    'add(float*)'
    """
    return str(written).strip('"').removesuffix("[clone .kd]").strip().removesuffix(".kd")


def _queue(row: Row) -> int:
    stream = row.get("stream-id")
    return int(row["queue-id"] if stream in (None, "") else stream)


def _link(row: Row, table: str) -> int:
    """A number of its own for each record: rocprof counts the calls of HIP and of HSA apart."""
    place = {"HIP": 0, "HSA": 1, _KERNELS: 2}[table]
    return 4 * int(row["Index"]) + place + 1


def first_copy_name(written: str) -> str:
    """The name that other profilers give to a copy of rocprof's.

    >>> first_copy_name("CopyHostToDevice")
    'Memcpy HtoD'
    """
    found = _DIRECTION.match(written)
    ends = {"Host": "H", "Device": "D", "Peer": "P"}
    return f"Memcpy {ends[found[1]]}to{ends[found[2]]}" if found else written
