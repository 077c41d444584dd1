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

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from ridgeline.report.name_cell import NameCell

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
            if options.is_terminal:
                yield from Table.__rich_console__(block, console, options)
            else:
                yield from block._with_whole_names(console, options)

    def _with_whole_names(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The block, in which names that do not fit stand whole above the figures of their row."""
        wide = options.update_width(BOUNDLESS)
        figures = [place for place, one in enumerate(self.columns) if one.justify == "right"]
        leading = self.columns[: figures[0] if figures else 0]
        done = 0
        for row in range(len(self.rows)):
            apart = 0
            for place, column in enumerate(leading):
                if not _fits(column._cells[row], column, console, wide):
                    apart = place + 1
            if apart:
                if row > done or not done:
                    yield from self._rows_of(done, row, console, options)
                yield self._names_of(row, leading[:apart])
                yield from self._rows_of(row, row + 1, console, options, bare=apart)
                done = row + 1
        if done < len(self.rows) or not done:
            yield from self._rows_of(done, len(self.rows), console, options)

    def _names_of(self, row: int, columns: Sequence[Column]) -> Text:
        """What stands above the figures of a row, under its headings as far as it goes."""
        line = Text(no_wrap=True, overflow="ignore", style=self.rows[row].style or "")
        at = 0
        for column in columns:
            line.pad_right(max(2, at - len(line)) if len(line) else at)
            line.append_text(_whole(column._cells[row]))
            at += (column.width or 0) + 2
        return line

    def _rows_of(
        self, begin: int, end: int, console: Console, options: ConsoleOptions, bare: int = 0
    ) -> RenderResult:
        """Some rows, under the heading where they are the first; of `bare` columns no cell."""
        part = self._with(self.columns)
        part.rows = self.rows[begin:end]
        for place, column in enumerate(part.columns):
            cells = self.columns[place]._cells[begin:end]
            column._cells = ["" for _ in cells] if place < bare else cells
        if begin or bare:
            part.title, part.show_header = None, False
        yield from Table.__rich_console__(part, console, options)

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


def _fits(cell: RenderableType, column: Column, console: Console, wide: ConsoleOptions) -> bool:
    """Whether a name stands on one line; words may take several."""
    if not isinstance(cell, NameCell):
        return True
    return Measurement.get(console, wide, cell).maximum <= (column.width or BOUNDLESS)


def _whole(cell: RenderableType) -> Text:
    if isinstance(cell, NameCell):
        return cell.text
    return cell if isinstance(cell, Text) else Text()
