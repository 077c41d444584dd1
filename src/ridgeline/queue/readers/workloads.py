"""Workloads that are to share GPUs: TOML with a table for each, or CSV with a row for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.queue.share.workload import ServedWorkload, WorkloadFile, check_workload
from ridgeline.records.input_file import csv_rows, read_text, read_toml

CURE = (
    "workloads are TOML with a [[workload]] each, or CSV with these columns: name, and gpu_share"
    " with memory_bytes, or model with rate, prompt, answer"
)
_COLUMNS = ServedWorkload.__struct_fields__


def read_workloads(path: Path) -> list[ServedWorkload]:
    """Read all workloads of a file.

    Raises:
        InputError: It is neither, a key is unknown, a number cannot be, or a name stands twice.
    """
    found = _of_csv(path) if path.suffix == ".csv" else _of_toml(path)
    if not found:
        raise InputError(f"{path}: no workload in it; {CURE}")
    seen: dict[str, str] = {}
    for where, one in found:
        check_workload(one, where)
        if one.name in seen:
            raise InputError(
                f"{where}: workload {one.name!r} stands in {seen[one.name]} already; give each a"
                " name of its own"
            )
        seen[one.name] = where.rpartition(", ")[2]
    return [one for _, one in found]


def _of_toml(path: Path) -> list[tuple[str, ServedWorkload]]:
    tables = read_toml(path, WorkloadFile, cure=CURE).workload
    return [(f"{path}, workload {place}", one) for place, one in enumerate(tables, 1)]


def _of_csv(path: Path) -> list[tuple[str, ServedWorkload]]:
    rows = csv_rows(read_text(path, cure=CURE), where=str(path), cure=CURE)
    head = [one.strip().lstrip("\ufeff") for one in next(rows, (0, []))[1]]
    _check_columns(head, path)
    found = []
    for line, cells in rows:
        where = f"{path}, line {line}"
        if len(cells) != len(head):
            raise InputError(f"{where}: {len(cells)} cells under {len(head)} columns")
        given = {name: cell.strip() for name, cell in zip(head, cells, strict=True) if cell.strip()}
        try:
            found.append((where, msgspec.convert(given, ServedWorkload, strict=False)))
        except msgspec.ValidationError as error:
            raise InputError(f"{where}: {error}") from None
    return found


def _check_columns(head: Sequence[str], path: Path) -> None:
    if "name" not in head:
        raise InputError(f"{path}: no column name; {CURE}")
    for name in head:
        if name not in _COLUMNS:
            raise InputError(f"{path}: a column {name!r}; known are {', '.join(_COLUMNS)}")
        if head.count(name) > 1:
            raise InputError(f"{path}: two columns {name}; keep one")
