"""Tables of published runs: what reading and judging one has in common, whatever its columns."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from ridgeline.errors import InputError
from ridgeline.records.input_file import csv_rows, read_bytes, read_text
from ridgeline.records.validation import ValidationRow

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """One row that cannot be predicted, and why."""

    row: int
    cells: Mapping[str, str]
    status: Literal["refused", "insufficient"]
    reason: str


def unjudged(one: Unreadable, row: Callable[..., Row]) -> Row:
    """The row of a validation that says what was published, and why it is not judged.

    Args:
        one: What could not be predicted.
        row: The kind of row: `TrainingRow` or `ServingRow`.
    """
    cells = one.cells
    return row(
        row=one.row,
        source=cells.get("source", ""),
        model=cells.get("model", ""),
        gpu=cells.get("gpu", ""),
        n_gpus=count(cells.get("n_gpus", "")),
        metric_name=cells.get("metric_name", ""),
        published=number(cells.get("metric_value", "")),
        status=one.status,
        reason=one.reason,
    )


def error_figures(
    rows: Sequence[ValidationRow], is_time: Callable[[str], bool] = lambda _: True
) -> dict[str, Any]:
    """The fields that the errors of a set of rows have in all validations.

    Args:
        rows: Those without an error are left out.
        is_time: Whether an error is of a time, by the row's metric; else it is of a rate.
    """
    judged = [row for row in rows if row.error is not None]
    if not judged:
        return {"rows": 0}
    errors = np.array([row.error for row in judged], dtype=float)
    times = np.array([is_time(row.metric_name) for row in judged])
    inside = [(row.low or 0.0) <= (row.published or 0.0) <= (row.high or 0.0) for row in judged]
    widths = [row.high / row.predicted for row in judged if row.high and row.predicted]
    by_source: dict[str, list[float]] = {}
    for row, error in zip(judged, np.abs(errors).tolist(), strict=True):
        by_source.setdefault(row.source, []).append(error)
    return {
        "rows": len(judged),
        "median": float(np.median(np.abs(errors))),
        "p90": float(np.quantile(np.abs(errors), 0.9)),
        "bias": float(np.median(np.where(times, 1.0 / (1.0 + errors), 1.0 + errors))) - 1.0,
        "coverage": float(np.mean(inside)),
        "width": float(np.mean(widths)) if widths else None,
        "mean_of_sources": float(np.mean([np.median(found) for found in by_source.values()])),
        "p90_of_sources": float(np.mean([np.quantile(one, 0.9) for one in by_source.values()])),
    }


OVERALL = ("rows", "median", "p90", "bias", "coverage")


def overall_figures(
    rows: Sequence[ValidationRow],
    statuses: Sequence[str],
    is_time: Callable[[str], bool] = lambda _: True,
) -> dict[str, Any]:
    """The fields that the summary of all rows has in all validations."""
    counts = {status: statuses.count(status) for status in ("ok", "refused", "insufficient")}
    figures = error_figures(rows, is_time)
    return {name: figures.get(name) for name in OVERALL} | counts | {"rows": len(rows)}


def read_cells(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Column → text of every row, in order.

    Raises:
        InputError: It is no CSV table, lacks one of `columns`, or has no rows.
    """
    cure = "give a CSV table of published runs"
    text = _unpacked(path, cure) if path.suffix == ".gz" else read_text(path, cure=cure)
    rows = csv_rows(text, where=str(path), cure=cure)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    missing = [name for name in columns if name not in header]
    if missing:
        raise InputError(
            f"{path}: no column {', '.join(missing)}; add it to the header (cells may be empty)"
        )
    cells = [
        {name: text.strip() for name, text in zip_longest(header, row[: len(header)], fillvalue="")}
        for _, row in rows
    ]
    if not cells:
        raise InputError(f"{path}: no rows below the header")
    return cells


def _unpacked(path: Path, cure: str) -> str:
    try:
        return gzip.decompress(read_bytes(path, cure=cure)).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not gzip of text ({error}); {cure}") from None


def positive(text: str) -> float | None:
    """A finite number above 0; None: it is none."""
    found = number(text)
    return found if found is not None and 0.0 < found < math.inf else None


def whole(cells: Mapping[str, str], name: str) -> int | None:
    """A whole number of 1 or more; None: the cell is blank.

    Raises:
        InputError: It is anything else.
    """
    text = cells.get(name, "")
    if not text:
        return None
    value = positive(text)
    if value is None or value != int(value):
        raise InputError(f"{name} is {text!r}; it must be a whole number of 1 or more")
    return int(value)


def number(text: str) -> float | None:
    """Whatever number a cell has; None: none."""
    try:
        return float(text)
    except ValueError:
        return None


def count(text: str) -> int | None:
    """The whole number of a cell, as far as it has one."""
    value = number(text)
    return int(value) if value is not None and math.isfinite(value) else None
