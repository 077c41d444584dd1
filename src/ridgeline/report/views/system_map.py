"""What `ridgeline predict system` shows: the parts as one drawing, and one of them in full."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from ridgeline import quantity
from ridgeline.records.system_map import SystemMap, SystemPart
from ridgeline.report import document as doc
from ridgeline.report.plots import Figure, plain_text, plot_layout

TITLES = {
    "data": "Data",
    "training": "Training",
    "compression": "Compression",
    "serving": "Serving",
    "vehicle": "Vehicle",
}
GAP, WIDTH, HALF = 1.25, 1.0, 0.5
BELOW = 1.45
NARROW = 11
"""Signs of a line in a box: on a phone a box has no more room."""


def system_document(found: SystemMap) -> doc.ReportDocument:
    """The map, every part in a line, and the part that was asked about."""
    title = f"{found.model}: {found.cluster} to {found.vehicle}"
    lead = doc.Lead(
        title=f"{TITLES[found.tightest]} holds it back",
        subtitle=found.why_tightest,
        origin=doc.Phrase(title, "strong"),
    )
    drawing = doc.Chapter("The system", doc.figure("map", map_figure(found), 360), NOTE)
    shown: list[doc.Block] = [lead, doc.Only("page", [drawing]), part_table(found)]
    part = shown_part(found)
    shown += [doc.Chapter(TITLES[part.part], part_blocks(part))]
    shown += [doc.Chapter("Assumed, not measured or given", [doc.Lines(found.assumed)])]
    return doc.ReportDocument(title, shown)


NOTE = "From the images to the frame that a vehicle sees. The frame in red holds the system back."


def shown_part(found: SystemMap) -> SystemPart:
    """The part that was asked about."""
    return next(part for part in found.parts if part.part == found.shown)


def map_figure(found: SystemMap) -> Figure:
    """A box for each part, arrows between them; each box names the input that shows it."""
    places = _places()
    layout = plot_layout("", "")
    layout["xaxis"] = {"visible": False, "fixedrange": True, "range": [-0.65, 3.15]}
    layout["yaxis"] = {"visible": False, "fixedrange": True, "range": [-2.15, 0.75]}
    layout["shapes"] = [_box(found, part, places[part.part]) for part in found.parts]
    layout["annotations"] = [
        *(_arrow(places[start], places[end]) for start, end in _WAYS),
        *(_words(part, places[part.part]) for part in found.parts),
    ]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": [places[part.part][0] for part in found.parts],
        "y": [places[part.part][1] for part in found.parts],
        "customdata": [f"set:part={part.part}" for part in found.parts],
        "text": [f"{TITLES[part.part]}: {plain_text(part.limit)}" for part in found.parts],
        "marker": {"size": 90, "symbol": "square", "opacity": 0.0},
        "hovertemplate": "%{text}<extra></extra>",
        "showlegend": False,
    }
    return {"data": [trace], "layout": layout}


_WAYS = (
    ("data", "training"),
    ("training", "compression"),
    ("compression", "serving"),
    ("compression", "vehicle"),
)


def _places() -> dict[str, tuple[float, float]]:
    """Middle of each box: three in a row, serving and vehicle below."""
    return {
        "data": (0.0, 0.0),
        "training": (GAP, 0.0),
        "compression": (2 * GAP, 0.0),
        "serving": (GAP, -BELOW),
        "vehicle": (2 * GAP, -BELOW),
    }


def _box(found: SystemMap, part: SystemPart, middle: tuple[float, float]) -> Figure:
    x, y = middle
    held = part.part == found.tightest
    chosen = part.part == found.shown
    return {
        "type": "rect", "xref": "x", "yref": "y",
        "x0": x - HALF, "x1": x + HALF, "y0": y - HALF, "y1": y + HALF,
        "fillcolor": "--accent-soft" if chosen else "--page",
        "line": {
            "color": "--bad" if held else "--accent",
            "width": 4 if held or chosen else 1.5,
            "dash": "solid" if held else ("solid" if chosen else "dot"),
        },
        "layer": "below",
    }  # fmt: skip


def _words(part: SystemPart, middle: tuple[float, float]) -> Figure:
    headline = "<br>".join(wrap(plain_text(part.headline), NARROW))
    cost = "" if part.cost_usd is None else f"<br>{quantity.usd(part.cost_usd)}"
    return {
        "x": middle[0], "y": middle[1], "showarrow": False, "captureevents": False,
        "text": f"<b>{TITLES[part.part]}</b><br>{headline}{cost}",
    }  # fmt: skip


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> Figure:
    """From the side of one box to that of the next."""
    (x, y), (to_x, to_y) = start, end
    along, down = (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)
    if down and along:  # around the corner, from below
        along = 0
    return {
        "ax": x + HALF * along if not down else x - 0.2 * (to_x < x),
        "ay": y + HALF * down,
        "x": to_x - HALF * along if not down else to_x + (HALF - 0.1) * (to_x < x),
        "y": to_y - HALF * down,
        "xref": "x", "yref": "y", "axref": "x", "ayref": "y", "text": "",
        "showarrow": True, "arrowhead": 2, "arrowsize": 1.2, "arrowwidth": 2,
        "arrowcolor": "--muted",
    }  # fmt: skip


def part_table(found: SystemMap) -> doc.DataTable:
    """Every part in a line."""
    columns = (
        doc.words("part"),
        doc.words("headline", ""),
        doc.Column("cost_usd", "cost"),
        doc.Column("limit", "limit", "remark"),
    )
    rows = [
        (doc.Phrase(TITLES[part.part], "strong" if part.part == found.shown else ""),
         part.headline, part.cost_usd, part.limit)
        for part in found.parts
    ]  # fmt: skip
    return doc.DataTable(columns, rows)


def part_blocks(part: SystemPart) -> list[doc.Block]:
    """A part of the system: its limit, figures, what helped others, and the next command."""
    pairs: list[tuple[str, doc.Words]] = [
        (quantity.without_unit(name), quantity.shown(name, value))
        for name, value in part.figures.items()
    ]
    blocks: list[doc.Block] = [doc.Paragraph(part.limit), doc.Values(pairs)]
    if part.measured:
        columns = (
            doc.words("technique", "measured on public scripts"),
            doc.Column("median_ratio", "median"),
            doc.Column("least_ratio", "least"),
            doc.Column("most_ratio", "most"),
            doc.Column("scripts"),
        )
        rows = [
            (one.technique, one.median_ratio, one.least_ratio, one.most_ratio, one.scripts)
            for one in part.measured
        ]
        blocks.append(doc.DataTable(columns, rows))
    if part.predicted:
        foreseen = (doc.words("change", "predicted, not measured"), doc.Column("ratio", "times"))
        blocks.append(doc.DataTable(foreseen, [(one.change, one.ratio) for one in part.predicted]))
    return [*blocks, doc.Verbatim(part.command)]
