"""Why one estimate beats another, in the terminal: sentences, then every term side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from ridgeline import quantity
from ridgeline.report.fitted_table import FittedTable


def explanation_view(
    names: tuple[str, str],
    sentences: Sequence[str],
    knobs: dict[str, tuple[str, str]],
    terms: Sequence[tuple[str, float, float]],
) -> RenderableType:
    """Sentences, the knobs that differ, and the terms of both steps (name, first, second)."""
    parts: list[RenderableType] = [Text(f"{sentence}.") for sentence in sentences]
    if knobs:
        table = _table("knob", *names)
        for knob, values in knobs.items():
            table.add_row(knob, *values)
        parts += [Text(), table]
    table = _table("term", *names, "difference")
    for term, first, second in terms:
        if max(first, second) > 0:
            difference = quantity.seconds(second - first)
            table.add_row(term, quantity.seconds(first), quantity.seconds(second), difference)
    return Group(*parts, Text(), table)


def _table(head: str, *columns: str) -> FittedTable:
    table = FittedTable(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column(head)
    for column in columns:
        table.add_column(column, justify="right")
    return table
