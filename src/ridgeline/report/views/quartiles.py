"""Many like records as their quartiles and outliers: ranks of a job, steps of a run.

An outlier lies more than one and a half interquartile ranges outside the quartiles (Tukey,
Exploratory Data Analysis, 1977).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import quantiles
from typing import Any

from ridgeline.report import document as doc
from ridgeline.report.views.trace import rows_of

FEW = 16
"""Up to so many records are listed as they are."""
_WHISKERS = 1.5
_MOST_OUTLIERS = 12
_NAMED = 4
_MOST_ROWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpread:
    """How a figure is spread over the records; places are positions in them."""

    column: doc.Column
    quartiles: tuple[float, float, float, float, float]
    """Least, lower quartile, median, upper quartile, most."""
    least: int
    most: int
    outliers: list[int]
    """Places beyond the whiskers, the furthest out first."""


def spread_blocks(
    columns: Sequence[doc.Column], records: Sequence[tuple[str, Any]], noun: str
) -> list[doc.Block]:
    """A few records as rows; of many the quartiles, the outliers, and all of them folded away.

    Args:
        columns: what is shown of a record; the ends of the first figure are always shown.
        records: the records, each with what it is called.
        noun: what a record is: `rank`, `step`.
    """
    if len(records) <= FEW:
        return [_rows(columns, records, noun, sortable=True)]
    spreads = field_spreads(columns, [record for _, record in records])
    names = [name for name, _ in records]
    chosen = _standing_out(spreads)
    blocks: list[doc.Block] = [_quartile_table(spreads, names, noun)]
    if chosen:
        title = f"Ends and outliers among {len(records)} {noun}s"
        blocks.append(_rows(columns, [records[place] for place in chosen], noun, title))
    every = _rows(columns, records, noun, sortable=True)
    return [*blocks, doc.Folded(f"All {len(records)} {noun}s", [every])]


def field_spreads(columns: Sequence[doc.Column], records: Sequence[Any]) -> list[FieldSpread]:
    """The spread of each figure that is known of every record and not the same in all."""
    found = []
    for column in columns:
        if column.kind != "figure":
            continue
        values = [attrgetter(column.field)(record) for record in records]
        if not all(isinstance(value, (int, float)) for value in values) or len(set(values)) < 2:
            continue
        if any(isinstance(value, bool) for value in values):
            continue
        found.append(_spread(column, [float(value) for value in values]))
    return found


def _spread(column: doc.Column, values: Sequence[float]) -> FieldSpread:
    low, middle, high = quantiles(values, n=4, method="inclusive")
    reach = _WHISKERS * (high - low)
    beyond = [max(low - reach - value, value - high - reach) for value in values]
    outliers = [place for place, distance in enumerate(beyond) if distance > 0]
    return FieldSpread(
        column=column,
        quartiles=(min(values), low, middle, high, max(values)),
        least=values.index(min(values)),
        most=values.index(max(values)),
        outliers=sorted(outliers, key=lambda place: -beyond[place]),
    )


def _standing_out(spreads: Sequence[FieldSpread]) -> list[int]:
    """Both ends of the first figure, then outliers in turn of each figure; no more than a few."""
    if not spreads:
        return []
    found = dict.fromkeys((spreads[0].most, spreads[0].least))
    deepest = max(len(spread.outliers) for spread in spreads)
    for rank in range(deepest):
        for spread in spreads:
            if rank < len(spread.outliers) and len(found) < _MOST_OUTLIERS:
                found.setdefault(spread.outliers[rank])
    return list(found)


def _quartile_table(
    spreads: Sequence[FieldSpread], names: Sequence[str], noun: str
) -> doc.DataTable:
    columns = (
        doc.words("figure", ""),
        *doc.figures("least", "lower quartile", "median", "upper quartile", "most"),
        doc.words("least_of", f"least: {noun}"),
        doc.words("most_of", f"most: {noun}"),
        doc.words("outliers"),
    )
    rows = [
        (
            spread.column.heading,
            *(spread.column.text(value) for value in spread.quartiles),
            names[spread.least],
            names[spread.most],
            _listed([names[place] for place in spread.outliers]),
        )
        for spread in spreads
    ]
    return doc.DataTable(columns, rows)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more if names else "none"


def _rows(
    columns: Sequence[doc.Column],
    records: Sequence[tuple[str, Any]],
    noun: str,
    title: str = "",
    *,
    sortable: bool = False,
) -> doc.DataTable:
    table = rows_of(columns, [("", record) for _, record in records])
    cells = [(name, *row) for (name, _), row in zip(records, table.rows, strict=True)
             if not isinstance(row, doc.TableRow)]  # fmt: skip
    return doc.DataTable((doc.words("name", noun), *columns), cells, title, sortable=sortable,
                         page_rows=_MOST_ROWS)  # fmt: skip
