"""What `ridgeline calc` shows: a formula's result, or the list of all formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline import quantity
from ridgeline.report import document as doc

MOST_ROWS = 40
_SYMBOLS = {
    "flops_per_second": "FLOP/s",
    "bytes_per_second": "B/s",
    "flops_per_byte": "FLOP/B",
    "seconds": "s",
    "us": "µs",
    "bytes": "B",
    "flops": "FLOP",
}
"""Unit → how it is written behind a number that has no prefix."""
_RATE, _EACH = "_per_second", "_per_token"


def calc_document(
    title: str, values: Mapping[str, object], assumed: Sequence[str] = (), measure: str = ""
) -> doc.ReportDocument:
    """Names with what stands for them: the result's parts, or what each formula is about.

    Rows of a kind stand in a table; what nests deeper is for --json.

    Args:
        title: What the formula gives.
        values: The parts by their names, which end with their units.
        assumed: What was taken for granted.
        measure: What a single number is, whose name is its formula's.
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
            written = value_in_words(measure or name, value, is_named=not measure)
            pairs.append((name, written))
    rest = [f"With --json there is more: {', '.join(deep)}."] if deep else []
    blocks = [doc.Paragraph(title), doc.Values(pairs, listed=True), *tables]
    if assumed:
        blocks.append(doc.Paragraph(f"Assumed: {'; '.join(assumed)}."))
    return doc.ReportDocument(title, [*blocks, doc.Lines(rest, "dim")])


def value_in_words(name: str, value: object, *, is_named: bool = True) -> str:
    """A number as people read it, with its unit, and exactly where that says more.

    >>> value_in_words("elapsed_seconds", 0.0875), value_in_words("tokens_per_second", 1234.6)
    ('87.5 ms (0.0875 s)', '1,235 tokens/s (1234.6)')
    >>> value_in_words("steps", 12, is_named=False), value_in_words("bytes_per_token", 524288)
    ('12 steps', '524 kB/token (524288 B/token)')

    Args:
        name: What it is, with its unit.
        value: A number, several, or words.
        is_named: What it counts stands beside it already.
    """
    if isinstance(value, (list, tuple)):
        return ", ".join(value_in_words(name, one) for one in value)
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    each = "/token" if name.endswith(_EACH) else ""
    name = name.removesuffix(_EACH)
    symbol = _SYMBOLS.get(quantity.unit_of(name))
    readable = _readable(name, value, is_named=is_named) + each
    exact = f"{value:.12g}"
    if readable.replace(",", "").partition(" ")[0] == exact and symbol is None:
        return readable
    exact += f" {symbol}{each}" if symbol else ""
    return readable if exact == readable else f"{readable} ({exact})"


def _readable(name: str, value: float, *, is_named: bool) -> str:
    """A number in the unit that its name has, or with the things that it counts."""
    if quantity.unit_of(name):
        return quantity.shown(name, value)
    if name.endswith("speedup"):
        return quantity.ratio(value)
    number = quantity.number(value)
    if _RATE in name:
        return f"{number} {name.partition(_RATE)[0].rpartition('_')[2]}/s"
    if name.endswith("_joules"):
        return quantity.scaled(value, "J")
    if name.endswith("_kilograms"):
        return f"{number} kg"
    return number if is_named else f"{number} {name}"


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
