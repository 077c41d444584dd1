"""The answer of a question as a table in a file: CSV or Parquet, a row per record.

Columns are the keys of the records' JSON, units included, so that they are as stable as those. A
record inside a record has its name before its keys (`roofline_bound`), so has a table of values
(`delay_us_median`); a list is its JSON in a cell. The columns of a record do not depend on what
there is to tell: they come from its types, and an answer without rows has a head.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.store import write_atomically

SUFFIXES = (".csv", ".parquet")


def check_table_file(path: Path) -> None:
    """Refuse a file that could not be written, before anything is read.

    Raises:
        InputError: Its name does not end as a table's does, or pyarrow is missing for Parquet.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"--out {path}: name a file that ends in {' or '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        _arrow(path)


def write_table(path: Path, kind: type, records: Sequence[Any], rows: str = "") -> int:
    """Write one row per record, or per member of each record's list `rows`; how many those were.

    Args:
        path: The file, `.csv` or `.parquet`.
        kind: What the records are.
        records: Answers of a question, one per GPU or rank.
        rows: The field with the list whose members are the rows; empty: the record is the row.
    """
    columns, told = _table(kind, records, rows)
    content = _parquet(columns, told, path) if path.suffix == ".parquet" else _csv(columns, told)
    write_atomically(path, content)
    return len(told)


def _table(
    kind: type, records: Sequence[Any], rows: str
) -> tuple[dict[str, type], list[dict[str, Any]]]:
    """Column → type, and the rows with a value or None for each."""
    if not rows:
        columns = _columns(kind)
        told = [_values(record) for record in records]
    else:
        hints = get_type_hints(kind)
        head = {name: _plain(hints[name]) for name in _head(kind)}
        columns = head | _columns(get_args(hints[rows])[0])
        told = [
            {name: getattr(record, name) for name in head} | _values(one)
            for record in records
            for one in getattr(record, rows)
        ]
    for row in told:  # keys of a table of values are known from the values alone
        told_of = (name for name, value in row.items() if value is not None)
        columns |= {name: float for name in told_of if name not in columns}
    return columns, [{name: row.get(name) for name in columns} for row in told]


def _head(kind: type) -> list[str]:
    """What every row repeats of its record: whose it is, of which window."""
    known = ("file", "rank", "device", "window", "window_us")
    return [name for name in known if name in get_type_hints(kind)]


def _columns(kind: type, before: str = "") -> dict[str, type]:
    found: dict[str, type] = {}
    for name, hint in get_type_hints(kind).items():
        inner = _plain(hint)
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            found |= _columns(inner, f"{before}{name}_")
        elif inner is not dict:
            found[before + name] = inner
    return found


def _plain(hint: Any) -> type:
    """The type of a cell: a number, a text, a truth value, a record; `dict` for a table of values.

    What is left, lists, are texts.
    """
    if get_origin(hint) in (Union, UnionType):
        told = [one for one in get_args(hint) if one is not type(None)]
        hint = told[0] if len(told) == 1 else str
    if get_origin(hint) is dict:
        return dict
    return hint if isinstance(hint, type) and get_origin(hint) is None else str


def _values(record: Any, before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in record.__struct_fields__:
        value, called = getattr(record, name), before + name
        if isinstance(value, msgspec.Struct):
            found |= _values(value, f"{called}_")
        elif isinstance(value, dict):
            found |= {f"{called}_{key}": one for key, one in value.items()}
        elif isinstance(value, list | tuple):
            found[called] = msgspec.json.encode(value).decode()
        else:
            found[called] = value
    return found


def _csv(columns: dict[str, type], rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    written = csv.writer(text, lineterminator="\n")
    written.writerow(columns)
    for row in rows:
        written.writerow(["" if value is None else _written(value) for value in row.values()])
    return text.getvalue().encode()


def _written(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _parquet(columns: dict[str, type], rows: Sequence[dict[str, Any]], path: Path) -> bytes:
    arrow = _arrow(path)
    kinds = {int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    schema = arrow.schema(
        [(name, kinds.get(kind, arrow.string())) for name, kind in columns.items()]
    )
    from pyarrow import parquet

    content = arrow.BufferOutputStream()
    parquet.write_table(arrow.Table.from_pylist(list(rows), schema), content)
    whole: bytes = content.getvalue().to_pybytes()
    return whole


def _arrow(path: Path) -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise InputError(
            f"--out {path}: pyarrow is not installed; run: pip install pyarrow, or write a .csv"
        ) from None
    return pa
