"""Tables of text of rocprofv3, rocprof before it, and ROCm Compute Profiler: a row per kernel.

    PREFIX_kernel_trace.csv   of `rocprofv3 --output-format csv`; what the same run wrote beside it
                              (PREFIX_hip_api_trace.csv, …_memory_copy_trace.csv) is read with it
    results.csv               of `rocprof`; DispatchNs says when a kernel was put into its queue
    timestamps.csv            the same, kept by ROCm Compute Profiler under other names

A table with counters in it is none of these: its kernels ran one by one, again and again.

Source: github.com/ROCm/rocprofiler-sdk, source/lib/output/generateCSV.cpp.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.records.input_file import csv_rows, read_text
from ridgeline.trace.columns import ABSENT
from ridgeline.trace.file_rows import FileRows
from ridgeline.trace.formats.rocprof.first_database import DISPATCH, kernel_name
from ridgeline.trace.formats.rocprof.hsa import block_counts, copy_name

_CURE = "write it with rocprofv3 --sys-trace --output-format csv"
_ENDING = "kernel_trace.csv"
_SAME = {
    "kernelname": "name", "function": "name", "starttimestamp": "start", "beginns": "start",
    "endtimestamp": "end", "endns": "end", "dispatchns": "dispatched", "agentid": "device",
    "gpuid": "device", "queueid": "queue", "streamid": "stream", "threadid": "thread",
    "tid": "thread", "correlationid": "correlation", "grd": "grid", "gridsize": "grid",
    "wgr": "workgroup", "workgroupsize": "workgroup", "lds": "shared", "ldsperworkgroup": "shared",
    "ldsblocksize": "shared", "groupsegmentsize": "shared", "vgpr": "registers",
    "archvgpr": "registers", "vgprcount": "registers", "direction": "direction",
    "destinationagentid": "target", "sourceagentid": "source",
}  # fmt: skip
"""What a column holds, by its name in small letters without `_` and `-`."""
_UNUSED = frozenset({
    "index", "dispatchid", "pid", "processid", "kernelid", "kind", "domain", "queueindex", "scr",
    "scratchsize", "scratchperworkitem", "privatesegmentsize", "accumvgpr", "accumvgprcount",
    "sgpr", "sgprcount", "fbar", "wavesize", "sig", "obj", "completens", "durationns",
})  # fmt: skip
_AXES = re.compile(r"(gridsize|workgroupsize)([xyz])")
_DIGITS = re.compile(r"\d+")
_CALLS = ("hip_api", "hip_runtime_api", "hip_compiler_api", "hsa_api", "rccl_api", "hip", "hsa")

_ONE = 0
"""The process of everything: the table of kernels does not name it, and a run of one has its own
tables."""

Row = dict[str, str]
"""What a field holds → its text."""


def is_kernel_table(start: bytes) -> bool:
    """Does a text begin with the head of a table of kernels and their times?

    >>> is_kernel_table(b'"Kind","Agent_Id","Kernel_Name","Start_Timestamp","End_Timestamp"')
    True
    >>> is_kernel_table(b"Dispatch_ID,Kernel_Name,SQ_WAVES,Start_Timestamp,End_Timestamp")
    False
    """
    first = start.partition(b"\n")[0].decode("utf-8-sig", "replace").strip()
    try:
        head = next(csv.reader([first]), [])
    except csv.Error:  # it is not even text
        return False
    known = all(_holds(column) or _plain(column) in _UNUSED for column in head)
    return known and {_holds(column) for column in head} >= {"name", "start", "end", "device"}


def read_kernel_table(path: Path) -> FileRows:
    """The kernels of a table, and what its run wrote beside it.

    Raises:
        InputError: a row has no whole numbers where times are, or another length than its head.
    """
    found = FileRows()
    _read(path, partial(_add_kernel, found))
    prefix = path.name.removesuffix(_ENDING)
    if prefix != path.name:
        beside = dict.fromkeys((f"{name}_trace.csv" for name in _CALLS), _add_call)
        beside |= {"marker_api_trace.csv": _add_range, "memory_copy_trace.csv": _add_copy}
        for ending, add in beside.items():
            other = path.with_name(prefix + ending)
            if other.is_file():
                _read(other, partial(add, found))
    return found


def _read(path: Path, add: Callable[[Row, int], None]) -> None:
    """Add each row, with its number from 1 on."""
    rows = csv_rows(read_text(path, cure=_CURE), where=str(path), cure=_CURE)
    _, head = next(rows)
    held = [_holds(column) for column in head]
    for number, (line, cells) in enumerate(rows, 1):
        if len(cells) != len(held):
            said = f"{len(cells)} fields below a head of {len(held)}"
            raise InputError(f"{path}, line {line}: {said}; {_CURE}")
        try:
            add(dict(zip(held, cells, strict=True)), number)
        except (ValueError, KeyError):
            raise InputError(f"{path}, line {line}: no whole numbers as times; {_CURE}") from None


def _add_kernel(found: FileRows, row: Row, number: int) -> None:
    """Add a kernel and, where it is told, when it was put into its queue, in place of a call."""
    dispatched = row.get("dispatched")
    link = number if dispatched else _number(row, "correlation")
    blocks, threads = _blocks(row)
    found.add_kernel(
        name=kernel_name(row["name"]), start=int(row["start"]), end=int(row["end"]),
        device=_number(row, "device", 0), stream=_number(row, "stream", _number(row, "queue")),
        correlation=link, process=_ONE, blocks=blocks, threads=threads,
        shared=_number(row, "shared"), registers=_number(row, "registers"),
    )  # fmt: skip
    if dispatched:
        found.add_call(
            name=DISPATCH, start=int(dispatched), end=int(dispatched), process=_ONE,
            thread=_number(row, "thread", 0), correlation=link,
        )  # fmt: skip


def _add_call(found: FileRows, row: Row, number: int) -> None:  # noqa: ARG001 - as _add_kernel
    found.add_call(
        name=row["name"], start=int(row["start"]), end=int(row["end"]), process=_ONE,
        thread=_number(row, "thread", 0), correlation=_number(row, "correlation"),
    )  # fmt: skip


def _add_range(found: FileRows, row: Row, number: int) -> None:  # noqa: ARG001 - as _add_kernel
    found.add_range(
        written=row["name"], start=int(row["start"]), end=int(row["end"]), process=_ONE,
        thread=_number(row, "thread", 0),
    )  # fmt: skip


def _add_copy(found: FileRows, row: Row, number: int) -> None:  # noqa: ARG001 - as _add_kernel
    to_host = "TO_HOST" in row["direction"]
    found.add_copy(
        name=copy_name(row["direction"]), start=int(row["start"]), end=int(row["end"]),
        device=_number(row, "source" if to_host else "target", 0), stream=_number(row, "stream"),
        correlation=_number(row, "correlation"), process=_ONE, size=ABSENT,
    )  # fmt: skip


def _blocks(row: Row) -> tuple[int, int]:
    if row.get("grid"):
        return block_counts((_number(row, "grid"),), (_number(row, "workgroup"),))
    axes = [(_number(row, f"grid{axis}"), _number(row, f"workgroup{axis}")) for axis in "xyz"]
    grid, workgroup = zip(*axes, strict=True)
    return block_counts(grid, workgroup)


def _number(row: Row, key: str, otherwise: int = ABSENT) -> int:
    """The first whole number of a field, which may have a word before it (`Agent 4`)."""
    found = _DIGITS.search(row.get(key, ""))
    return int(found[0]) if found else otherwise


def _plain(column: str) -> str:
    return re.sub(r"[-_ ]", "", column).lower()


def _holds(column: str) -> str:
    """What a column holds; empty for one that is not used."""
    name = _plain(column)
    axis = _AXES.fullmatch(name)
    return axis[1].removesuffix("size") + axis[2] if axis else _SAME.get(name, "")
