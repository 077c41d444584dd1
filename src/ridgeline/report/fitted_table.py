"""A table that never cuts a heading or a figure: what does not fit beside stands below.

rich squeezes every column when the terminal is narrow, so that headings read "tim…" and figures
"20.0 …". Here text gives way first; what still does not fit is drawn as a second table under the
first, beginning with the same leading columns, and so on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

LEAST_TEXT = 12
"""Columns that a text keeps when it gives way."""
BOUNDLESS = 10_000


class FittedTable(Table):
    """A rich table whose first `lead` columns say what a row is of."""

    def __init__(self, *headers: Column | str, lead: int = 1, **options: Any) -> None:
        super().__init__(*headers, **options)
        self.lead = lead

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for place, block in enumerate(self._blocks(console, options)):
            if place:
                block.title = None
                yield Text()
            yield from Table.__rich_console__(block, console, options)

    def _blocks(self, console: Console, options: ConsoleOptions) -> Iterator[FittedTable]:
        """The table in as many parts as it takes; one where it fits or nothing would help."""
        wide = options.update_width(BOUNDLESS)
        columns = [self._kept(column, console, wide) for column in self.columns]
        lead, others = columns[: self.lead], columns[self.lead :]
        chosen: list[Column] = []
        for column in others:
            fits = self._width([*lead, *chosen, column], console, wide) <= options.max_width
            if chosen and not fits:
                yield self._with(self._filled([*lead, *chosen], console, options))
                chosen = []
            chosen.append(column)
        yield self._with(self._filled([*lead, *chosen], console, options))

    def _filled(
        self, columns: Sequence[Column], console: Console, options: ConsoleOptions
    ) -> list[Column]:
        """The columns as wide as they want to be, those that want little before the others.

        rich would shrink the widest first, below the least that it is told of.
        """
        wide = options.update_width(BOUNDLESS)
        room = options.max_width - self._width(columns, console, wide)
        filled = [replace(column, width=column.min_width or 0, ratio=None) for column in columns]
        wanted = {
            place: self._wanted(column, console, wide) - (column.min_width or 0)
            for place, column in enumerate(columns)
        }
        for still, place in enumerate(sorted(wanted, key=lambda at: wanted[at])):
            extra = min(wanted[place], max(room, 0) // (len(columns) - still))
            room -= extra
            filled[place].width = (filled[place].width or 0) + extra
        return filled

    def _wanted(self, column: Column, console: Console, wide: ConsoleOptions) -> int:
        texts = [*column.cells, *([column.header] if self.show_header else [])]
        sizes = (Measurement.get(console, wide, text).maximum for text in texts)
        return max(column.min_width or 0, *sizes, 0)

    def _kept(self, column: Column, console: Console, wide: ConsoleOptions) -> Column:
        """The column with the width below which it says less than it should."""
        sizes = [Measurement.get(console, wide, cell) for cell in column.cells]
        widest = max((size.maximum for size in sizes), default=0)
        heading = Measurement.get(console, wide, column.header if self.show_header else "")
        if column.justify == "right" or (column.no_wrap and column.ratio is None):
            return replace(column, no_wrap=True, min_width=max(widest, heading.maximum))
        least = max(heading.minimum, min(widest, LEAST_TEXT), column.min_width or 0)
        return replace(column, min_width=least)

    def _width(self, columns: Sequence[Column], console: Console, wide: ConsoleOptions) -> int:
        fixed = [replace(column, width=column.min_width, ratio=None) for column in columns]
        block = self._with(fixed)
        block.expand = False
        return Table.__rich_measure__(block, console, wide).maximum

    def _with(self, columns: Sequence[Column]) -> FittedTable:
        block = copy.copy(self)
        block.columns = [replace(column, _index=place) for place, column in enumerate(columns)]
        return block
