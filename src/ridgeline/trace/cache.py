"""Parsed traces kept on disk, on request: columns as numpy writes them, the rest as msgpack.

Whatever format a file of traces has, its traces are kept in one file of the cache, named by path,
size, time of change and options, so a file that changed is read again. A damaged entry (cut, with
other bytes, of another version) is told by its checksum and its types; the trace is then read anew
and the entry replaced, because nothing is in it that the trace does not hold.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ridgeline.errors import InputError
from ridgeline.records.store import write_atomically
from ridgeline.trace.columns import TABLES, Collective, Trace, TraceDevice, column_types

MAGIC = b"RIDGELINE-TRACE\0"
VERSION = 8
"""The layout; raise it when columns change their meaning."""


_CHECKSUM_BYTES = 4


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
    record_gpu: str | None
    raw_bytes: int
    details: bool


def cached(
    folder: Path, path: Path, read: Callable[[Path, bool], list[Trace]], *, details: bool
) -> list[Trace]:
    """The traces of a file from the cache in `folder`; read and kept there where it has none.

    Raises:
        InputError: the trace cannot be read, or the cache neither read nor written.
    """
    place = folder / _name(path, details=details)
    kept = _load(place)
    if kept is None:
        kept = read(path, details)
        _store(place, kept)
    return kept


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
    body = b"".join(
        [len(header).to_bytes(8, "little"), header, *(values.tobytes() for *_, values in columns)]
    )
    content = MAGIC + zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little") + body
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, content)
    except OSError as error:
        raise InputError(f"--cache {place.parent}: {error.strerror or error}") from None


def _load(place: Path) -> list[Trace] | None:
    """The traces of an entry; None where there is none, or it is not what was written."""
    try:
        content = memoryview(place.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"--cache {place}: {error.strerror or error}") from None
    start = len(MAGIC) + _CHECKSUM_BYTES
    body = content[start:]
    if content[: len(MAGIC)] != MAGIC or zlib.crc32(body) != int.from_bytes(
        content[len(MAGIC) : start], "little"
    ):
        return None
    try:
        return _decoded(body)
    except (msgspec.DecodeError, IndexError, KeyError, TypeError, ValueError):
        return None


def _decoded(body: memoryview) -> list[Trace]:
    """The traces of an entry.

    Raises:
        ValueError: a column is not of its type, or they do not fill the entry.
    """
    place = 8 + int.from_bytes(body[:8], "little")
    facts, layout = msgspec.msgpack.decode(
        body[8:place], type=tuple[list[_Facts], list[tuple[int, str, str, str, int]]]
    )
    tables: list[dict[str, dict[str, Any]]] = [{name: {} for name in TABLES} for _ in facts]
    for number, table, name, dtype, length in layout:
        kind = np.dtype(column_types(TABLES[table])[name])
        if np.dtype(dtype) != kind:
            raise ValueError(f"{table}.{name} is {dtype}")
        values = np.frombuffer(body, kind, length, place)
        tables[number][table][name] = values.copy()  # writable, and aligned
        place += values.nbytes
    if place != len(body):
        raise ValueError("more than the columns")
    return [_trace(own, filled) for own, filled in zip(facts, tables, strict=True)]


def _trace(facts: _Facts, columns: dict[str, dict[str, Any]]) -> Trace:
    filled = {table: kind(**columns[table]) for table, kind in TABLES.items()}
    known = {field: getattr(facts, field) for field in _Facts.__struct_fields__}
    return Trace(**known, **filled)
