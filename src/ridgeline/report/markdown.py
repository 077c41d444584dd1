"""Draws a document as GitHub-flavoured Markdown, for comments that a CI job writes."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from ridgeline.report import document as doc
from ridgeline.visible import visible_text


def draw_markdown(document: doc.ReportDocument) -> str:
    """The texts and tables of a document; sections are folded."""
    return visible_text("\n".join(_drawn(document.blocks)).rstrip() + "\n")


def _drawn(blocks: Sequence[doc.Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, doc.Lead):
            yield from (f"### Ridgeline: {_escaped(doc.plain(block.title))}", "")
        elif isinstance(block, doc.Paragraph):
            yield from (f"{_escaped(doc.plain(block.words))}.", "")
        elif isinstance(block, doc.Lines):
            warning = block.tone == "warning"
            for line in block.lines:
                said = _escaped(doc.plain(line))
                yield (
                    f"> **Warning:** {said.removeprefix('warning: ')}  " if warning else f"- {said}"
                )
            yield ""
        elif isinstance(block, doc.Chapter):
            yield from (f"<details><summary>{_escaped(block.title)}</summary>", "")
            yield from _drawn(block.blocks)
            yield from ("</details>", "")
        elif isinstance(block, doc.DataTable):
            yield from (*_table(block), "")


def _table(table: doc.DataTable) -> Iterator[str]:
    columns, rows = table.shown("page")
    yield "| " + " | ".join(column.heading for column in columns) + " |"
    yield "| " + " | ".join("---:" if one.kind == "figure" else "---" for one in columns) + " |"
    for row in rows:
        cells = (
            _escaped(doc.plain(column.text(cell)))
            for column, cell in zip(columns, row.cells, strict=True)
        )
        yield "| " + " | ".join(cells) + " |"


def _escaped(text: str) -> str:
    """File names and commands are the user's: nothing in them may act as Markdown or HTML."""
    one_line = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~#@!])", r"\\\1", one_line)
