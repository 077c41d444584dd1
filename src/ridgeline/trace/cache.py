"""Parsed traces kept on disk, on request: columns as numpy writes them, the rest as msgpack.

A file of the cache is named by the trace's path, size, time of change and options, so a trace that
changed is read again. One that is damaged is an error that names it: it is never silently ignored.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.records.store import write_atomically
from ridgeline.trace.columns import (
    Collective,
    Device,
    GpuEvents,
    HostEvents,
    MemoryEvents,
    SyncRecords,
    Trace,
)
from ridgeline.trace.kineto import read_kineto

MAGIC = b"RIDGELINE-TRACE\0"
VERSION = 3
"""Raise it when columns change their meaning."""
TABLES = {
    "gpu": GpuEvents,
    "host": HostEvents,
    "sync": SyncRecords,
    "memory": MemoryEvents,
    "gpu_annotations": GpuEvents,
}


class _Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything of a `Trace` but its tables."""

    file: str
    rank: int | None
    world_size: int | None
    base_us: float
    clock_offset_ns: int
    devices: tuple[Device, ...]
    backend: str | None
    warnings: tuple[str, ...]
    names: tuple[str, ...]
    threads: tuple[tuple[int | str, int | str], ...]
    thread_names: dict[int, str]
    collectives: tuple[Collective, ...]
    shapes: tuple[str, ...]
    stacks: tuple[str, ...]
    num_events: int
    raw_bytes: int
    details: bool


def cached(folder: Path, path: Path, *, details: bool) -> Trace:
    """The trace from the cache in `folder`, or from its file, which is then kept there."""
    place = folder / _name(path, details=details)
    if place.exists():
        return _read(place)
    trace = read_kineto(path, details=details)
    _write(place, trace)
    return trace


def _name(path: Path, *, details: bool) -> str:
    known = path.stat()
    key = f"{VERSION} {path.resolve()} {known.st_size} {known.st_mtime_ns} {details}"
    return f"{path.name.partition('.')[0]}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.trace"


def _write(place: Path, trace: Trace) -> None:
    """One line of msgpack with the layout, then the columns one after the other."""
    facts = _Facts(**{field: getattr(trace, field) for field in _Facts.__struct_fields__})
    columns = [
        (table, column.name, np.ascontiguousarray(getattr(getattr(trace, table), column.name)))
        for table, kind in TABLES.items()
        for column in fields(kind)
    ]
    layout = [(table, name, values.dtype.str, len(values)) for table, name, values in columns]
    header = msgspec.msgpack.encode((facts, layout))
    content = b"".join(
        [
            MAGIC,
            len(header).to_bytes(8, "little"),
            header,
            *(values.tobytes() for _, _, values in columns),
        ]
    )
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, content)
    except OSError as error:
        raise InputError(f"--cache {place.parent}: {error.strerror or error}") from None


def _read(place: Path) -> Trace:
    try:
        with place.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise InputError(f"{place}: not a cached trace; remove the file")
            header = file.read(int.from_bytes(file.read(8), "little"))
            facts, layout = msgspec.msgpack.decode(
                header, type=tuple[_Facts, list[tuple[str, str, str, int]]]
            )
            tables: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
            for table, name, dtype, length in layout:
                tables[table][name] = np.fromfile(file, np.dtype(dtype), length)
                if len(tables[table][name]) != length:
                    raise InputError(f"{place}: the cached trace ends early; remove the file")
    except OSError as error:
        raise InputError(f"{os.fspath(place)}: {error.strerror or error}") from None
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        raise InputError(f"{place}: not a cached trace; remove the file") from None
    filled = {table: kind(**tables[table]) for table, kind in TABLES.items()}
    known = {field: getattr(facts, field) for field in _Facts.__struct_fields__}
    return Trace(**known, **filled)
