"""Draws a document in a terminal, for 80 columns and more; pictures read without colours too.

Text of users is a `Text` and never rich's markup, so a bracket in a file name stays a bracket, and
what would steer a terminal is shown (`ridgeline.visible`). In a pipe, a file or a log of CI nothing
is cut: a row whose names do not fit beside its figures has them above, on a line of their own and
whole. Where a narrow table leaves a column out, a line says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.bar import Bar as ShareBar
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.styled import Styled
from rich.table import Table as Grid
from rich.text import Text

from ridgeline.report import document as doc
from ridgeline.report.fitted_table import FittedTable
from ridgeline.report.name_cell import NameCell
from ridgeline.visible import visible, visible_text

WIDE = 110
"""Columns from which a table shows what a narrow one leaves out."""
STYLES: dict[doc.Tone, str] = {
    "": "",
    "strong": "bold",
    "dim": "dim",
    "good": "bold green",
    "bad": "bold red",
    "warning": "yellow",
    "accent": "cyan",
}
LONGEST_WORD = 40
"""In tables, longer words are cut even where nobody looks."""
METER_COLUMNS = 24
BAR_COLUMNS = 50
PLACES = 3
"""So many places of a finding are shown."""
PLACE_COLUMNS = 60
"""The width of a place in a finding at 80 columns: the line number is never broken off."""


def terminal_view(document: doc.ReportDocument) -> RenderableType:
    """The document for rich to print."""
    return Group(*_spaced(visible(document.blocks)))


def _spaced(blocks: Sequence[doc.Block]) -> Iterator[RenderableType]:
    """Blocks with an empty line around each that is more than a text."""
    before: doc.Block | None = None
    for block in _visible(blocks):
        if before is not None and not (_is_text(block) and _is_text(before)):
            yield Text()
        yield from draw(block)
        before = block


def _visible(blocks: Sequence[doc.Block]) -> Iterator[doc.Block]:
    for block in blocks:
        if isinstance(block, doc.Only):
            yield from _visible(block.blocks) if block.medium == "terminal" else ()
        elif isinstance(block, doc.Chapter):
            if any(True for _ in _visible(block.blocks)) or block.note:
                yield block
        elif type(block) in _DRAWN and not (isinstance(block, doc.Lines) and not block.lines):
            yield block


def _is_text(block: doc.Block) -> bool:
    return isinstance(block, (doc.Paragraph, doc.Lines))


def draw(block: doc.Block) -> Iterator[RenderableType]:
    """One block; nothing of what pages alone show."""
    yield from _DRAWN[type(block)](block)


def text(words: doc.Words, tone: doc.Tone = "") -> Text:
    """Words in their tones."""
    shown = Text()
    for one in doc.spans(words, tone):
        shown.append(one.text, style=STYLES[one.tone])
    return shown


def _lead(lead: doc.Lead) -> Iterator[RenderableType]:
    if lead.origin:
        yield Wrapped(text(lead.origin, "dim"))
        yield Text()
    title = text(lead.title, "strong")
    if lead.subtitle:
        title.append(": ", style="bold").append_text(text(lead.subtitle))
    if lead.meter is None and lead.chip is not None:
        title.append("  ").append_text(text(lead.chip))
    yield Wrapped(title)
    if lead.meter is not None:
        share = min(1.0, max(0.0, lead.meter))
        bar = ShareBar(1.0, 0.0, share, width=30, color="green", bgcolor="bright_black")
        grid = Grid.grid(padding=(0, 2))
        grid.add_column(width=30)
        grid.add_column(no_wrap=True)
        grid.add_row(bar, text(lead.chip or "", "strong"))
        yield grid


def _facts(facts: doc.Values) -> Iterator[RenderableType]:
    if not facts.listed:
        shown = [Text.assemble((f"{name} ", "dim"), text(value)) for name, value in facts.pairs]
        yield Columns(shown, padding=(0, 3))
        return
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in facts.pairs:
        grid.add_row(Text(name), text(value))
    yield grid


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A text whose lines break between words; a longer word stays whole, and sticks out."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.text.split("\n", allow_blank=True):
            indent = " " * (len(line.plain) - len(line.plain.lstrip()))
            pieces = line.divide(_breaks(line.plain, options.max_width, len(indent)))
            for place, piece in enumerate(pieces):
                piece.rstrip()
                yield Text.assemble(indent if place else "", piece, no_wrap=True, overflow="ignore")


def _breaks(line: str, width: int, indent: int = 0) -> list[int]:
    """Where a line is broken so that its words fit, those further down behind an indentation.

    >>> _breaks("one two three", 8), _breaks("  one two three", 9, 2)
    ([8], [10])
    """
    found: list[int] = []
    start, room = 0, width
    for word in re.finditer(r"\S+", line):
        if word.end() - start > room and word.start() > start + indent * (not found):
            start, room = word.start(), width - indent
            found.append(start)
    return found


def _paragraph(paragraph: doc.Paragraph) -> Iterator[RenderableType]:
    yield Wrapped(text(paragraph.words, paragraph.tone))


def _lines(lines: doc.Lines) -> Iterator[RenderableType]:
    for line in lines.lines:
        yield Wrapped(text(line, lines.tone))


def _verbatim(block: doc.Verbatim) -> Iterator[RenderableType]:
    yield Text(block.text, no_wrap=True, overflow="ignore")


def _section(section: doc.Chapter) -> Iterator[RenderableType]:
    yield Text(section.title, style="bold")
    if section.note:
        yield Text(section.note, style="dim")
    yield from _spaced(section.blocks)


def _findings(found: doc.AdviceList) -> Iterator[RenderableType]:
    texts = (text for one in found.findings for text in (one.worth, one.sureness))
    width = max(map(len, texts), default=0)
    for number, finding in enumerate(found.findings, start=1):
        if number > 1:
            yield Text()
        yield FindingView(number, finding, width)


@dataclass(frozen=True, slots=True)
class FindingView:
    """A finding beside what it is worth."""

    number: int
    finding: doc.Advice
    width: int
    """The columns of what it is worth."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        finding = self.finding
        grid = Grid.grid(padding=(0, 2))
        grid.add_column(width=2, justify="right", no_wrap=True)
        grid.add_column(width=self.width)
        grid.add_column(ratio=1, overflow="fold")
        worth = Text(finding.worth, style="bold green")
        worth.append(f"\n{finding.sureness}", style="not bold dim")
        body: list[RenderableType] = [
            Text(finding.title, style="bold"),
            Text(finding.cure),
        ]
        for place in finding.places[:PLACES]:
            cut = options.is_terminal
            where = shortened_place(place, PLACE_COLUMNS) if cut else place
            body.append(Styled(NameCell(where, cut), "cyan"))
        facts = " · ".join(f"{label} {value}" for label, value in finding.facts)
        said = (" ".join(finding.evidence), facts, finding.note)
        body += [Text(line, style="dim") for line in said if line]
        grid.add_row(Text(str(self.number), style="dim"), worth, Group(*body))
        yield grid


def shortened_place(where: str, width: int) -> str:
    """`file:line` in so many columns: what gives way is the middle of the path.

    >>> shortened_place("src/train.py:12", 40)
    'src/train.py:12'
    >>> shortened_place("/home/me/projects/vision/src/train.py:12", 28)
    '/home/me…ion/src/train.py:12'
    """
    if len(where) <= width:
        return where
    if re.search(r":\d+$", where) is None:
        return where[: width - 1] + "…"
    file, colon, line = where.rpartition(":")
    room = max(width - len(colon + line) - 1, 8)
    head = room // 3
    return f"{file[:head]}…{file[len(file) - (room - head) :]}{colon}{line}"


def _bars(block: doc.Bars) -> Iterator[RenderableType]:
    sizes = [sum(part.size for part in bar.parts) for bar in block.bars]
    scale = max([*sizes, block.limit or 0.0]) or 1.0
    mark = None if block.limit is None else round(BAR_COLUMNS * block.limit / scale)
    grid = Grid.grid(padding=(0, 1))
    titled = any(bar.title for bar in block.bars)
    for _ in range(2 + titled):
        grid.add_column(no_wrap=True)
    for bar in block.bars:
        drawn, done = Text(), 0.0
        for part in bar.parts:
            start, done = round(BAR_COLUMNS * done / scale), done + part.size
            length = round(BAR_COLUMNS * done / scale) - start
            drawn.append(part.look.fill * length, style=part.look.terminal)
        if mark is not None:
            drawn.pad_right(max(0, mark - len(drawn)))
            drawn = Text.assemble(drawn[:mark], ("|", "bold red"), drawn[mark:])
        grid.add_row(*([Text(bar.title)] if titled else []), drawn, Text(bar.total))
    yield grid
    if block.legend is not None:
        yield from _table(block.legend)


def _table(table: doc.DataTable) -> Iterator[RenderableType]:
    yield TableView(table)


@dataclass(frozen=True, slots=True)
class TableView:
    """A table as wide as the terminal allows."""

    table: doc.DataTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= WIDE
        columns, rows = self.table.shown("terminal", wide=wide)
        remark = None if wide else _first(columns, "remark")
        under = None if remark is None else _first(columns, "words", "name")
        drawn = FittedTable(
            lead=self.table.lead,
            title=Text(self.table.title, style="bold") if self.table.title else None,
            title_justify="left",
            box=None,
            show_header=any(column.heading for column in columns),
            header_style="dim",
            pad_edge=False,
            padding=(0, 2, 0, 0),
        )
        for place, column in enumerate(columns):
            if column.kind == "figure":
                drawn.add_column(column.heading, justify="right", no_wrap=True)
            elif place != remark:
                cells = [row.cells[place] for row in rows]
                least = 0 if options.is_terminal else _longest_word(column, cells)
                drawn.add_column(column.heading, overflow="fold", min_width=least)
        for row in rows:
            line: list[RenderableType] = [
                _cell(column, cell, cut=options.is_terminal)
                for column, cell in zip(columns, row.cells, strict=True)
            ]
            if remark is not None and under is not None:
                said = Padding(line.pop(remark), (0, 0, 0, 1), style="dim")
                if row.cells[remark]:
                    line[under] = Group(line[under], said)
            drawn.add_row(*line, style=STYLES[row.tone])
        yield drawn
        left_out = [one.heading for one in self.table.shown("terminal")[0] if one not in columns]
        if left_out:
            yield Text(f"from {WIDE} columns on also: {', '.join(left_out)}", style="dim")


def _longest_word(column: doc.Column, cells: Sequence[doc.Cell]) -> int:
    """The columns that words need to stay whole; names are one word, and may be broken."""
    if column.kind == "name":
        return 0
    texts = " ".join(doc.plain(column.text(cell)) for cell in cells)
    return min(LONGEST_WORD, max(map(len, texts.split()), default=0))


def _first(columns: Sequence[doc.Column], *kinds: str) -> int | None:
    """The place of the first headed column of these kinds."""
    places = (at for at, one in enumerate(columns) if one.heading and one.kind in kinds)
    return next(places, None)


def _cell(column: doc.Column, cell: doc.Cell, *, cut: bool) -> Text | NameCell:
    if isinstance(cell, doc.Meter):
        look, length = cell.look, max(1, round(METER_COLUMNS * cell.share))
        return Text("█" * length if look is None else look.fill * length,
                    style="cyan" if look is None else look.terminal)  # fmt: skip
    if isinstance(cell, doc.Key):
        return Text.assemble((f"{cell.look.fill} ", cell.look.terminal), cell.name)
    words = column.text(cell)
    if column.kind == "name":
        given = doc.plain(words)
        whole = given[: len(given) - len(given.lstrip())] + " ".join(given.split())
        return NameCell(whole, cut)
    return text(words)


def _drawing(drawing: doc.Drawing) -> Iterator[RenderableType]:
    yield DrawingView(drawing)


@dataclass(frozen=True, slots=True)
class DrawingView:
    """A picture as wide as the terminal allows."""

    drawing: doc.Drawing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.drawing.draw(options.max_width):
            pieces = [(visible_text(said), style) for said, style in line]
            yield Text.assemble(*pieces, no_wrap=True)


_DRAWN: dict[type, Callable[[Any], Iterator[RenderableType]]] = {
    doc.Lead: _lead,
    doc.Values: _facts,
    doc.Paragraph: _paragraph,
    doc.Lines: _lines,
    doc.Verbatim: _verbatim,
    doc.Chapter: _section,
    doc.AdviceList: _findings,
    doc.Bars: _bars,
    doc.DataTable: _table,
    doc.Drawing: _drawing,
}
"""Block → how it is drawn; what is not here is for pages alone."""
