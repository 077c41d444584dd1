"""Draws a document as one HTML file that needs nothing else: no network, no neighbouring files.

plotly.js is put into the page once, where there are plots; a content-security policy in the page
itself forbids it to fetch anything. Looks and scripts are the files beside this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import Any

from ridgeline.report import document as doc
from ridgeline.report.markup import Markup, data_script, element, joined

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
)
SEARCHED_ROWS = 5
"""A sortable table of more rows can be filtered."""
LONGEST_NAME = 100
TRACE_SCRIPTS = (
    "trace_canvas.js",
    "trace_timeline.js",
    "trace_flame.js",
    "trace_tables.js",
    "trace_page.js",
)
"""The script of pages with timelines, flame graphs or sortable tables, in this order."""
_BREAKS = re.compile(r"([_:/.,(<\-])(?=\w)")
"""After these a long name may go on in the next line."""


def draw_page(document: doc.ReportDocument) -> str:
    """The document as one self-contained file."""
    body = [part for block in document.blocks for part in _drawn(block)]
    every = list(_all_blocks(document.blocks))
    plots = {f"plot-{one.name}": one.plot for one in every if isinstance(one, doc.Figure)}
    canvases = [one for one in every if isinstance(one, doc.Canvas)]
    sorts = any(isinstance(one, doc.DataTable) and one.sortable for one in every)
    scripts: list[Markup] = []
    styles = ["page.css"]
    if plots:
        scripts += [data_script("figures", plots)]
        scripts += [_script(_plotly()), _script(_own_file("page.js"))]
    if canvases or sorts:
        styles.append("trace_page.css")
        scripts += [data_script("drawings", _drawings(canvases))]
        drawing = "".join(_own_file(name) for name in TRACE_SCRIPTS)
        scripts += [_script(f"(function () {{\n{drawing}}})();\n")]
    return _framed(document.title, styles, body, scripts)


def draw_blocks(blocks: Sequence[doc.Block]) -> tuple[Markup, dict[str, Any]]:
    """Blocks as a part of a page that has its own frame: the markup, and its plots by element."""
    body = joined([part for block in blocks for part in _drawn(block)])
    every = list(_all_blocks(blocks))
    return body, {f"plot-{one.name}": one.plot for one in every if isinstance(one, doc.Figure)}


def _all_blocks(blocks: Sequence[doc.Block]) -> Iterator[doc.Block]:
    for block in blocks:
        yield block
        if isinstance(block, (doc.Chapter, doc.Folded, doc.Only)) and _is_on_page(block):
            yield from _all_blocks(block.blocks)


def _is_on_page(block: doc.Block) -> bool:
    return not isinstance(block, doc.Only) or block.medium == "page"


def _drawings(canvases: Sequence[doc.Canvas]) -> dict[str, Any]:
    """What the page's own script draws: timelines and flame graphs, rank by rank."""
    by_kind = {one.kind: one for one in canvases}
    labels = next((one.labels for one in canvases), [])
    drawn = {f"{kind}s": by_kind[kind].data if kind in by_kind else []
             for kind in ("timeline", "flame")}  # fmt: skip
    return {**drawn, "labels": labels}


def _framed(
    title: str, styles: Sequence[str], body: Sequence[Markup], scripts: Sequence[Markup]
) -> str:
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"{element('title', f'{title} · Ridgeline')}"
        f"<style>{''.join(_own_file(style) for style in styles)}</style></head>\n"
        f"<body>{element('main', *body)}"
        f"{element('footer', 'Ridgeline: limit, measurement, finding, technique, ledger.')}\n"
        f"{joined(scripts)}</body></html>\n"
    )


def _script(source: str) -> Markup:
    return Markup(f"<script>{source}</script>")


def _own_file(name: str) -> str:
    """A style sheet or script that ships beside this module."""
    return files("ridgeline.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    """plotly.js as the plotly package ships it; importing that package would cost a second."""
    return files("plotly.package_data").joinpath("plotly.min.js").read_text(encoding="utf-8")


# -- blocks ----------------------------------------------------------------------------------------


def _drawn(block: doc.Block) -> Iterator[Markup]:
    """One block; nothing of what terminals alone show."""
    draw = _DRAWN.get(type(block))
    if draw is not None:
        yield from draw(block)


def _text(words: doc.Words) -> Markup:
    parts = [
        one.text if not one.tone else element("span", one.text, class_=f"tone-{one.tone}")
        for one in doc.spans(words)
    ]
    return joined(parts)


def _lead(lead: doc.Lead) -> Iterator[Markup]:
    chip = lead.chip
    parts = []
    if lead.origin:
        parts.append(element("p", _text(lead.origin), class_="origin"))
    look = "chip good" if chip is not None and chip.tone == "good" else "chip"
    beside = [] if chip is None else [element("span", chip.text, class_=look)]
    parts.append(element("h1", _text(lead.title), *beside))
    if lead.subtitle:
        parts.append(element("p", _text(lead.subtitle), class_="sub"))
    if lead.meter is not None:
        width = f"width:{100 * min(1.0, max(0.0, lead.meter)):.1f}%"
        fill = element("span", class_="meter-fill", style=width)
        title = "" if chip is None else chip.text
        parts.append(element("div", fill, class_="meter", title=title))
    yield element("header", *parts)


def _facts(facts: doc.Values) -> Iterator[Markup]:
    rows = [
        element("div", element("dt", name), element("dd", _text(value)))
        for name, value in facts.pairs
    ]
    yield element("dl", *rows, class_="listed" if facts.listed else "tiles")


def _paragraph(paragraph: doc.Paragraph) -> Iterator[Markup]:
    tone = {"class_": f"tone-{paragraph.tone}"} if paragraph.tone else {}
    yield element("p", _text(paragraph.words), **tone)


def _lines(lines: doc.Lines) -> Iterator[Markup]:
    if lines.lines:
        look = {"warning": "warnings", "": "lines"}.get(lines.tone, f"lines tone-{lines.tone}")
        yield element("ul", *(element("li", _text(line)) for line in lines.lines), class_=look)


def _verbatim(block: doc.Verbatim) -> Iterator[Markup]:
    yield element("pre", block.text)


def _section(section: doc.Chapter) -> Iterator[Markup]:
    parts = [part for block in section.blocks for part in _drawn(block)]
    if parts or section.note:
        note = [element("p", section.note, class_="note")] if section.note else []
        yield element("section", element("h2", section.title), *note, *parts)


def _folded(block: doc.Folded) -> Iterator[Markup]:
    parts = [part for inner in block.blocks for part in _drawn(inner)]
    yield element("details", element("summary", block.summary), *parts)


def _only(block: doc.Only) -> Iterator[Markup]:
    if block.medium == "page":
        for inner in block.blocks:
            yield from _drawn(inner)


def _findings(found: doc.AdviceList) -> Iterator[Markup]:
    yield element("ol", *(_finding(one) for one in found.findings), class_="findings")


def _finding(finding: doc.Advice) -> Markup:
    facts = [element("span", f"{label} ", element("b", value)) for label, value in finding.facts]
    places = [element("code", _breakable(place)) for place in finding.places]
    worth = [element("b", finding.worth), element("span", finding.sureness)]
    return element(
        "li",
        element("div", *worth, class_="worth"),
        element(
            "div",
            element("h3", finding.title),
            element("p", finding.cure),
            element("p", *places, class_="places") if places else "",
            element("p", *facts, class_="facts") if facts else "",
            element("p", " ".join(finding.evidence), class_="evidence") if finding.evidence else "",
            element("p", finding.note, class_="note") if finding.note else "",
        ),
    )


def _figure(figure: doc.Figure) -> Iterator[Markup]:
    """The place that the page's script draws a figure into."""
    message = element("noscript", "This plot needs JavaScript.")
    style = f"min-height:{figure.height}px"
    yield element("div", message, class_="plot", id=f"plot-{figure.name}", style=style)


def _canvas(canvas: doc.Canvas) -> Iterator[Markup]:
    if canvas.kind == "flame":
        yield element(
            "p",
            element("button", "Host time", class_="by", data_by="1"),
            element("button", "GPU time", class_="by", data_by="2"),
        )
    for place in range(len(canvas.data)):
        drawn = element("canvas", class_=canvas.kind, data_rank=str(place), tabindex="0")
        yield element(
            "div", drawn, element("p", "", class_="told", aria_live="polite"), class_="drawing"
        )


# -- tables ----------------------------------------------------------------------------------------


def _table(table: doc.DataTable) -> Iterator[Markup]:
    columns, rows = table.shown("page")
    head = [
        element("th", column.heading, class_=_kind(column), **_focus(table)) for column in columns
    ]
    limit = table.page_rows if table.sortable else len(rows)
    body = [_row(columns, row, sortable=table.sortable) for row in rows[:limit]]
    inner = element(
        "table",
        element("thead", element("tr", *head)),
        element("tbody", *body),
        **({"class_": "sortable"} if table.sortable else {}),
    )
    parts = [element("div", inner, class_="scroll")]
    if table.sortable and len(rows) > SEARCHED_ROWS:
        parts.insert(0, element("input", class_="filter", type="search", placeholder="filter rows",
                                aria_label="filter rows"))  # fmt: skip
    if len(rows) > limit:
        parts.append(element("p", f"The first {limit} of {len(rows)} rows.", class_="note"))
    if table.title:
        yield element("h3", table.title)
    yield from parts if not table.sortable else [element("div", *parts, class_="searched")]


def _focus(table: doc.DataTable) -> dict[str, str]:
    return {"tabindex": "0"} if table.sortable else {}


def _kind(column: doc.Column) -> str:
    return {"figure": "number", "words": "text", "name": "text", "remark": "words"}[column.kind]


def _row(columns: Sequence[doc.Column], row: doc.TableRow, *, sortable: bool) -> Markup:
    cells = [
        element("td", _cell(column, cell), class_=_kind(column), **_value(column, cell, sortable))
        for column, cell in zip(columns, row.cells, strict=True)
    ]
    return element("tr", *cells, **({"class_": f"row-{row.tone}"} if row.tone else {}))


def _value(column: doc.Column, cell: doc.Cell, sortable: bool) -> dict[str, str]:
    """The plain value that the page's script sorts by."""
    if not sortable:
        return {}
    if cell is None:
        return {"data_value": ""}
    if isinstance(cell, (bool, int, float)):
        return {"data_value": f"{cell:.6g}"}
    text = doc.plain(column.text(cell))
    return {"data_value": text[:LONGEST_NAME], "title": text[: 4 * LONGEST_NAME]}


def _cell(column: doc.Column, cell: doc.Cell) -> Markup:
    if isinstance(cell, doc.Key):
        dot = element("i", class_="dot", style=f"background:var({cell.look.color})")
        return joined([dot, cell.name])
    if isinstance(cell, doc.Meter):
        color = "--accent" if cell.look is None else cell.look.color
        style = f"width:{100 * cell.share:.1f}%;background:var({color})"
        return element("span", element("i", style=style), class_="share-bar")
    if isinstance(cell, doc.Whisker):
        return _whisker(cell)
    words = column.text(cell)
    if column.kind == "name":
        return _breakable(doc.plain(words)[:LONGEST_NAME])
    if column.kind == "remark":
        lines = doc.plain(words).split("\n")
        return joined([lines[0], *(element("small", line) for line in lines[1:])])
    return _text(words)


def _breakable(name: str) -> Markup:
    """A name that breaks between its parts, and not inside them."""
    return Markup(_BREAKS.sub(r"\1<wbr>", joined([name])))


def _whisker(one: doc.Whisker) -> Markup:
    start, end = one.span
    width = (end - start) or 1.0

    def place(value: float) -> float:
        return 100 * min(1.0, max(0.0, (value - start) / width))

    low, high = place(one.low), place(one.high)
    return element(
        "span",
        element("i", class_="one", style=f"left:{place(1.0):.2f}%"),
        element("i", class_="range", style=f"left:{low:.2f}%;width:{high - low:.2f}%"),
        element("i", class_="middle", style=f"left:{place(one.middle):.2f}%"),
        class_="whisker",
    )


# -- pictures of plain boxes -----------------------------------------------------------------------


def _bars(block: doc.Bars) -> Iterator[Markup]:
    sizes = [sum(part.size for part in bar.parts) for bar in block.bars]
    scale = max([*sizes, block.limit or 0.0]) or 1.0
    mark = []
    if block.limit is not None:
        mark.append(element("i", class_="limit", style=f"left:{100 * block.limit / scale:.2f}%"))
    for bar in block.bars:
        yield _bar(bar, scale, mark)
    if block.legend is not None:
        yield element("div", *_table(block.legend), class_="legend")


def _bar(bar: doc.Bar, scale: float, mark: Sequence[Markup]) -> Markup:
    pieces = [
        element(
            "span",
            class_="piece",
            style=f"width:{100 * part.size / scale:.3f}%;background:var({part.look.color})",
            title=f"{part.name}: {part.label}",
        )
        for part in bar.parts
    ]
    title = [element("span", bar.title), element("b", bar.total)]
    return element(
        "div",
        element("div", *title, class_="bar-title"),
        element("div", *pieces, *mark, class_="bar"),
        class_="stacked",
    )


def _waterfall(block: doc.Waterfall) -> Iterator[Markup]:
    scale = max(max(fall.start, fall.end) for fall in block.falls)
    yield element("div", *(_fall(fall, scale) for fall in block.falls), class_="waterfall")


def _fall(fall: doc.Fall, scale: float) -> Markup:
    low, high = sorted((fall.start, fall.end))
    kind = "whole" if fall.total else ("saved" if fall.end <= fall.start else "lost")
    style = f"left:{100 * low / scale:.3f}%;width:{100 * (high - low) / scale:.3f}%"
    pieces = [element("span", class_=f"fall {kind}", style=style)]
    if not fall.total:
        rest = f"left:0;width:{100 * low / scale:.3f}%"
        pieces.insert(0, element("span", class_="fall rest", style=rest))
    return element(
        "div",
        element("div", element("b", fall.name), element("span", fall.remark), class_="who"),
        element("div", *pieces, class_="track"),
        element("div", fall.label, class_="value"),
        class_="fall-row total" if fall.total else "fall-row",
    )


_DRAWN: dict[type, Callable[[Any], Iterator[Markup]]] = {
    doc.Lead: _lead,
    doc.Values: _facts,
    doc.Paragraph: _paragraph,
    doc.Lines: _lines,
    doc.Verbatim: _verbatim,
    doc.Chapter: _section,
    doc.Folded: _folded,
    doc.Only: _only,
    doc.AdviceList: _findings,
    doc.DataTable: _table,
    doc.Bars: _bars,
    doc.Waterfall: _waterfall,
    doc.Figure: _figure,
    doc.Canvas: _canvas,
}
"""Block → how it is drawn; what is not here is for terminals alone."""
