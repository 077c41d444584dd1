"""Everything that is shown, as one value: a document of blocks, drawn by `terminal.py`, `page.py`.

A view (`views/`) says once what a command shows; the renderers say how it looks. Text of users
travels as text: no renderer takes it for markup. A figure travels as a number, and the name of its
column says its unit, so that terminal and page cannot print it differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ridgeline import quantity
from ridgeline.report.plots import Look

Tone: TypeAlias = Literal["", "strong", "dim", "good", "bad", "warning", "accent"]
Medium: TypeAlias = Literal["terminal", "page"]


@dataclass(frozen=True, slots=True)
class Phrase:
    """A piece of text with its tone."""

    text: str
    tone: Tone = ""


Words: TypeAlias = str | Phrase | tuple[str | Phrase, ...]
"""Text, some of which may have a tone."""


def spans(words: Words, tone: Tone = "") -> list[Phrase]:
    """The pieces of a text; those without a tone get `tone`."""
    parts = words if isinstance(words, tuple) else (words,)
    given = (Phrase(part) if isinstance(part, str) else part for part in parts)
    return [one if one.tone else Phrase(one.text, tone) for one in given]


def plain(words: Words) -> str:
    """The text without its tones.

    >>> plain(("slower ", Phrase("2.00×", "bad")))
    'slower 2.00×'
    """
    return "".join(one.text for one in spans(words))


# -- tables ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """A cell that explains a colour of the picture beside it."""

    name: str
    look: Look


@dataclass(frozen=True, slots=True)
class Meter:
    """A cell with a bar, as long as its share of the longest."""

    share: float
    look: Look | None = None


@dataclass(frozen=True, slots=True)
class Whisker:
    """A cell with an interval drawn beside the line of "no difference" at 1."""

    low: float
    middle: float
    high: float
    span: tuple[float, float]
    """What the whole width stands for."""


Cell: TypeAlias = Words | Key | Meter | Whisker | float | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the field that it shows, whose name ends with the unit.

    Figures stand on the right and are never cut. Words wrap. Names (of kernels, of lines) are one
    word, and the first to give way. Remarks stand in a column where there is room for it, else
    below the first words of their row.
    """

    field: str
    """The name of the field that it shows, whose ending is the unit of its figures."""
    title: str | None = None
    """The heading of the column; None: the field in words, without its unit."""
    kind: Literal["figure", "words", "name", "remark"] = "figure"
    wide: bool = False
    """Left out of a narrow terminal."""
    only: Medium | None = None

    @property
    def heading(self) -> str:
        """What stands above the column."""
        own = self.field.rpartition(".")[2]
        return quantity.without_unit(own) if self.title is None else self.title

    def text(self, cell: Cell) -> Words:
        """A cell in words, a number in the unit of the column's field."""
        if cell is None:
            return "–"
        if isinstance(cell, bool):
            return "yes" if cell else ""
        if isinstance(cell, (int, float)):
            return quantity.shown(self.field.rpartition(".")[2], cell)
        if isinstance(cell, Key):
            return cell.name
        return "" if isinstance(cell, (Meter, Whisker)) else cell


def words(field: str, title: str | None = None, *, wide: bool = False) -> Column:
    """A column of words, which wrap."""
    return Column(field, title, "words", wide)


def name(field: str, title: str | None = None, *, wide: bool = False) -> Column:
    """A column of names, which give way first."""
    return Column(field, title, "name", wide)


def figures(*titles: str) -> tuple[Column, ...]:
    """Columns of figures that a view has written itself."""
    return tuple(Column(title, title) for title in titles)


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row that looks different from the others."""

    cells: tuple[Cell, ...]
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class DataTable:
    """Rows of cells under columns; a column without any value is left out."""

    columns: Sequence[Column]
    rows: Sequence[TableRow | Sequence[Cell]]
    title: str = ""
    lead: int = 1
    """So many first columns say what a row is about: they are repeated where a table is folded."""
    sortable: bool = False
    """On a page, readers may sort and filter the rows."""
    page_rows: int = 200
    """The most rows of a sortable table that are put into a page."""

    def __post_init__(self) -> None:
        for row in self.rows:
            cells = row.cells if isinstance(row, TableRow) else row
            assert len(cells) == len(self.columns), (cells, self.columns)

    def shown(self, medium: Medium, *, wide: bool = True) -> tuple[list[Column], list[TableRow]]:
        """The columns that a medium shows, and their cells row by row."""
        rows = [row if isinstance(row, TableRow) else TableRow(tuple(row)) for row in self.rows]
        places = [
            place
            for place, column in enumerate(self.columns)
            if column.only in (None, medium)
            and (wide or not column.wide)
            and (not rows or any(row.cells[place] is not None for row in rows))
        ]
        kept = [TableRow(tuple(row.cells[place] for place in places), row.tone) for row in rows]
        return [self.columns[place] for place in places], kept


# -- other blocks ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lead:
    """The answer in a line, above all others."""

    title: Words
    subtitle: Words = ""
    origin: Words = ""
    """What it is the answer about."""
    chip: Phrase | None = None
    """A word of judgement beside the title."""
    meter: float | None = None
    """A share drawn as a bar below."""


@dataclass(frozen=True, slots=True)
class Values:
    """Values with their labels: a few large ones to read first, or a list of any length."""

    pairs: Sequence[tuple[str, Words]]
    listed: bool = False


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A text of its own."""

    words: Words
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Lines:
    """Remarks, one below the other."""

    lines: Sequence[Words]
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A text to copy: never wrapped."""

    text: str


@dataclass(frozen=True, slots=True)
class Advice:
    """Something worth doing, and why it is believed."""

    worth: str
    sureness: str
    title: str
    cure: str
    places: Sequence[str] = ()
    """Lines of the script, `file:line`."""
    facts: Sequence[tuple[str, str]] = ()
    evidence: Sequence[str] = ()
    """The facts as sentences, where the view has them."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class AdviceList:
    """Findings, the most worthwhile first."""

    findings: Sequence[Advice]


@dataclass(frozen=True, slots=True)
class BarPart:
    """A coloured piece of a bar."""

    name: str
    size: float
    label: str
    look: Look


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of parts."""

    title: str
    total: str
    parts: Sequence[BarPart]


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars on one scale, and a table that explains their colours."""

    bars: Sequence[Bar]
    legend: DataTable | None = None
    limit: float | None = None
    """A mark that no bar should pass."""


@dataclass(frozen=True, slots=True)
class Fall:
    """A bar of a waterfall, from `start` down to `end`."""

    name: str
    remark: str
    start: float
    end: float
    label: str
    total: bool = False
    """A whole bar (before, after) and not a piece that was taken away."""


@dataclass(frozen=True, slots=True)
class Waterfall:
    """How a whole became what is left, piece by piece; on pages alone."""

    falls: Sequence[Fall]


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot as plotly.js takes it, `{"data": […], "layout": {…}}`; on pages alone."""

    name: str
    plot: dict[str, Any]
    height: int = 340


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture of characters; in terminals alone."""

    draw: Callable[[int], Sequence[Sequence[tuple[str, str]]]]
    """The lines of the picture in so many columns: pieces of text, each with its style."""


@dataclass(frozen=True, slots=True)
class Canvas:
    """Timelines or flame graphs of ranks, drawn by the page's own script; on pages alone."""

    kind: Literal["timeline", "flame"]
    data: Sequence[object]
    labels: Sequence[str]


@dataclass(frozen=True, slots=True)
class Chapter:
    """Blocks under a heading."""

    title: str
    blocks: Sequence[Block]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Folded:
    """Blocks behind a line that opens them; on pages alone."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Only:
    """Blocks that one medium alone shows."""

    medium: Medium
    blocks: Sequence[Block]


Block: TypeAlias = (
    Lead | Values | Paragraph | Lines | Verbatim | AdviceList | DataTable | Bars | Waterfall
    | Figure | Drawing | Canvas | Chapter | Folded | Only
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReportDocument:
    """What a command shows."""

    title: str
    """The name of the page."""
    blocks: Sequence[Block] = field(default_factory=list)


def figure(name: str, plot: dict[str, Any] | None, height: int = 340) -> list[Block]:
    """A figure; nothing where there is nothing to draw."""
    return [] if plot is None else [Figure(name, plot, height)]
