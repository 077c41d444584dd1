"""Parsed traces kept on disk, on request: columns as numpy writes them, the rest as msgpack.

Whatever format a file of traces has, its traces are kept in one file of the cache, named by path,
size, time of change and options, so a file that changed is read again. A damaged file of the cache
is an error that names it: it is never silently ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.records.store import write_atomically
from ridgeline.trace.columns import TABLES, Collective, Trace, TraceDevice

MAGIC = b"RIDGELINE-TRACE\0"
VERSION = 5
"""The layout; raise it when columns change their meaning."""


class _Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything of a `Trace` but its tables."""

    file: str
    rank: int | None
    world_size: int | None
    base_us: float
    clock_offset_ns: int
    devices: tuple[TraceDevice, ...]
    backend: str | None
    warnings: tuple[str, ...]
    names: tuple[str, ...]
    threads: tuple[tuple[int | str, int | str], ...]
    thread_names: dict[int, str]
    collectives: tuple[Collective, ...]
    shapes: tuple[str, ...]
    stacks: tuple[str, ...]
    num_events: int
    skipped: dict[str, int]
    cut: bool
    raw_bytes: int
    details: bool


def cached(
    folder: Path, path: Path, read: Callable[[Path, bool], list[Trace]], *, details: bool
) -> list[Trace]:
    """The traces of a file from the cache in `folder`; read and kept there where it has none."""
    place = folder / _name(path, details=details)
    if place.exists():
        return _load(place)
    traces = read(path, details)
    _store(place, traces)
    return traces


def _name(path: Path, *, details: bool) -> str:
    known = path.stat()
    key = f"{VERSION} {path.resolve()} {known.st_size} {known.st_mtime_ns} {details}"
    return f"{path.name.partition('.')[0]}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.trace"


def _store(place: Path, traces: list[Trace]) -> None:
    """One line of msgpack with facts and layout, then the columns one after the other."""
    facts = [
        _Facts(**{field: getattr(trace, field) for field in _Facts.__struct_fields__})
        for trace in traces
    ]
    columns = [
        (
            number,
            table,
            column.name,
            np.ascontiguousarray(getattr(getattr(trace, table), column.name)),
        )
        for number, trace in enumerate(traces)
        for table, kind in TABLES.items()
        for column in fields(kind)
    ]
    layout = [(*where, values.dtype.str, len(values)) for *where, values in columns]
    header = msgspec.msgpack.encode((facts, layout))
    content = b"".join(
        [
            MAGIC,
            len(header).to_bytes(8, "little"),
            header,
            *(values.tobytes() for *_, values in columns),
        ]
    )
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, content)
    except OSError as error:
        raise InputError(f"--cache {place.parent}: {error.strerror or error}") from None


def _load(place: Path) -> list[Trace]:
    try:
        with place.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise InputError(f"{place}: not a cached trace; remove the file")
            header = file.read(int.from_bytes(file.read(8), "little"))
            facts, layout = msgspec.msgpack.decode(
                header, type=tuple[list[_Facts], list[tuple[int, str, str, str, int]]]
            )
            tables: list[dict[str, dict[str, Any]]] = [{name: {} for name in TABLES} for _ in facts]
            for number, table, name, dtype, length in layout:
                values = np.fromfile(file, np.dtype(dtype), length)
                if len(values) != length:
                    raise InputError(f"{place}: the cached trace ends early; remove the file")
                tables[number][table][name] = values
    except OSError as error:
        raise InputError(f"{place}: {error.strerror or error}") from None
    except (msgspec.DecodeError, IndexError, KeyError, TypeError, ValueError):
        raise InputError(f"{place}: not a cached trace; remove the file") from None
    return [_trace(own, filled) for own, filled in zip(facts, tables, strict=True)]


def _trace(facts: _Facts, columns: dict[str, dict[str, Any]]) -> Trace:
    filled = {table: kind(**columns[table]) for table, kind in TABLES.items()}
    known = {field: getattr(facts, field) for field in _Facts.__struct_fields__}
    return Trace(**known, **filled)
