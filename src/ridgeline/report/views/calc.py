"""What `ridgeline calc` shows: a formula's result, or the list of all formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.report import document as doc

MOST_ROWS = 40


def calc_document(
    title: str, values: Mapping[str, object], assumed: Sequence[str] = ()
) -> doc.ReportDocument:
    """Names with what stands for them: the result's parts, or what each formula is about.

    Rows of a kind stand in a table; what nests deeper is for --json.
    """
    pairs: list[tuple[str, doc.Words]] = []
    tables: list[doc.Block] = []
    deep = []
    for name, value in values.items():
        if _is_rows(value):
            tables.append(_table(name, value))  # type: ignore[arg-type]  # as it was just asked
        elif isinstance(value, Mapping) or _holds_sequences(value):
            deep.append(name)
        else:
            pairs.append((name, str(value)))
    rest = [f"With --json there is more: {', '.join(deep)}."] if deep else []
    blocks = [doc.Paragraph(title), doc.Values(pairs, listed=True), *tables]
    if assumed:
        blocks.append(doc.Paragraph(f"Assumed: {'; '.join(assumed)}."))
    return doc.ReportDocument(title, [*blocks, doc.Lines(rest, "dim")])


def _is_rows(value: object) -> bool:
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(row, Mapping) for row in value)
    )


def _holds_sequences(value: object) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(one, (list, tuple)) for one in value)


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> doc.DataTable:
    """Rows with their plain fields."""
    fields = [
        field for field, value in rows[0].items() if not isinstance(value, (list, tuple, dict))
    ]
    columns = [
        doc.words(field, field) if isinstance(rows[0][field], str) else doc.Column(field)
        for field in fields
    ]
    shown = [tuple(row[field] for field in fields) for row in rows[:MOST_ROWS]]
    left = "" if len(rows) <= MOST_ROWS else f", the first {MOST_ROWS} of {len(rows)}"
    return doc.DataTable(columns, shown, title=name.replace("_", " ") + left)
