"""The report of `ridgeline compress`: what each scheme bought, for what loss; one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline import quantity
from ridgeline.records.compression import Chosen, CompressionLedger, CompressionRow
from ridgeline.report import sections
from ridgeline.report.compression_terminal import (
    COLUMNS,
    protocol_line,
    remark_lines,
    row_cells,
    search_lines,
    sensitive_lines,
)
from ridgeline.report.figures import Figure, plot_layout, rounded
from ridgeline.report.markup import Markup, element, table
from ridgeline.report.page_frame import drawn, whole_page

PARETO_NOTE = (
    "Down and to the left is better. The line joins the rows that no other row beats in both;"
    " a row above it paid for nothing."
)
SPEED_NOTE = "Down and to the right is better; all rows decoded in turns, batch 1."
LEDGER_NOTE = "Ratios and rises: against the row above."
LAYERS_NOTE = "What each layer cost when it alone was compressed by the scheme chosen for it."


def compression_page(ledger: CompressionLedger) -> str:
    """The page."""
    plots: dict[str, Figure] = {}
    body = [_header(ledger)]
    for title, note, name, figure in (
        ("Size against perplexity", PARETO_NOTE, "size", size_figure(ledger)),
        ("Speed against perplexity", SPEED_NOTE, "speed", speed_figure(ledger)),
    ):
        places = drawn(name, figure, plots, 380)
        if places:
            body.append(sections.section(title, note, *places))
    body.append(sections.section("Ledger", LEDGER_NOTE, _rows(ledger)))
    if ledger.search is not None:
        places = drawn("layers", layers_figure(ledger.search.chosen), plots, 380)
        lines = element("ul", *(element("li", line) for line in search_lines(ledger.search)))
        chosen = [[one.layer, one.scheme, quantity.digits(one.kl)] for one in ledger.search.chosen]
        listed = table(["layer", "scheme", "KL alone"], chosen, text_columns=2)
        body.append(sections.section("Layer by layer", LAYERS_NOTE, lines, *places, listed))
    body.append(sections.section("Measured on", "", sections.environment(ledger.environment)))
    return whole_page(f"Compression of {ledger.model}", body, plots)


def size_figure(ledger: CompressionLedger) -> Figure | None:
    """Rows by megabytes and perplexity."""
    return _pareto(ledger.rows, "MB on disk", lambda row: row.disk_bytes / 1e6, more=False)


def speed_figure(ledger: CompressionLedger) -> Figure | None:
    """Rows by tokens per second and perplexity; None where decoding was not measured."""

    def speed(row: CompressionRow) -> float | None:
        return None if row.decoding is None else row.decoding.tokens_per_second

    return _pareto(ledger.rows, "tokens/s", speed, more=True)


def _pareto(
    rows: Sequence[CompressionRow],
    x_title: str,
    along: Callable[[CompressionRow], float | None],
    *,
    more: bool,
) -> Figure | None:
    points = [
        (x, row.quality.perplexity, row.scheme)
        for row in rows
        if row.quality is not None and (x := along(row)) is not None
    ]
    if len(points) < 2:
        return None
    best = front([(x, y) for x, y, _ in points], more=more)
    layout = plot_layout(x_title, "perplexity per token")
    layout["xaxis"]["rangemode"] = "tozero"
    traces: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "best for its loss",
            "x": [rounded(points[place][0]) for place in best],
            "y": [rounded(points[place][1]) for place in best],
            "line": {"color": "--limit", "width": 2, "dash": "dot"},
            "hoverinfo": "skip",
        },
        {
            "type": "scatter",
            "mode": "markers+text",
            "name": "rows",
            "x": [rounded(x) for x, _, _ in points],
            "y": [rounded(y) for _, y, _ in points],
            "text": [name for _, _, name in points],
            "textposition": "top center",
            "marker": {
                "size": 11,
                "color": "--accent",
                "symbol": [
                    "circle" if place in best else "circle-open" for place in range(len(points))
                ],
            },
            "hovertemplate": "%{text}: %{y:.4g} at %{x:.4g}<extra></extra>",
        },
    ]
    return {"data": traces, "layout": layout}


def front(points: Sequence[tuple[float, float]], *, more: bool) -> list[int]:
    """Places of those that no other beats in both, from small x to large.

    Args:
        points: (x, loss); a smaller loss is better.
        more: Whether a larger x is better, or a smaller one.

    >>> front([(4, 10.0), (1, 11.0), (2, 12.0)], more=False)
    [1, 0]
    """
    sign = -1 if more else 1
    kept: list[int] = []
    for place in sorted(range(len(points)), key=lambda at: (sign * points[at][0], points[at][1])):
        if not kept or points[place][1] < points[kept[-1]][1]:
            kept.append(place)
    return kept[::-1] if more else kept


def layers_figure(chosen: Sequence[Chosen]) -> Figure | None:
    """Sensitivities in the order of the layers, a colour per scheme."""
    schemes = sorted({one.scheme for one in chosen})
    colors = ("--accent", "--communication", "--optimizer", "--forward", "--backward", "--muted")
    traces = [
        {
            "type": "bar",
            "name": scheme,
            "x": [one.layer for one in chosen if one.scheme == scheme],
            "y": [rounded(one.kl) for one in chosen if one.scheme == scheme],
            "marker": {"color": colors[place % len(colors)]},
            "hovertemplate": "%{x}: KL %{y:.3g}<extra></extra>",
        }
        for place, scheme in enumerate(schemes)
    ]
    if not traces:
        return None
    layout = plot_layout("", "KL, nats per token")
    layout["xaxis"] |= {
        "showticklabels": False,
        "categoryorder": "array",
        "categoryarray": [one.layer for one in chosen],
    }
    return {"data": traces, "layout": layout}


def _header(ledger: CompressionLedger) -> Markup:
    first, last = ledger.rows[0], ledger.rows[-1]
    facts = [("smaller", quantity.ratio(first.disk_bytes / max(1, last.disk_bytes)))]
    if first.quality is not None and last.quality is not None:
        rise = last.quality.perplexity / first.quality.perplexity - 1
        facts.append(("perplexity", f"{rise:+.2%}"))
    if last.divergence is not None:
        facts.append(("KL, mean", quantity.digits(last.divergence.kl_mean)))
    if first.decoding is not None and last.decoding is not None:
        speed = last.decoding.tokens_per_second / first.decoding.tokens_per_second
        facts.append(("tokens/s", quantity.ratio(speed)))
    remarks = remark_lines(ledger)
    remarks += [notice for row in ledger.rows for notice in row.notices]
    if ledger.refused:
        remarks = [f"nothing was saved: {ledger.refused}", *sensitive_lines(ledger), *remarks]
    return element(
        "header",
        element("p", element("b", "Compression"), class_="origin"),
        element("h1", ledger.model),
        element(
            "p", "" if ledger.protocol is None else protocol_line(ledger.protocol), class_="sub"
        ),
        sections.tiles(facts),
        sections.remarks(remarks),
    )


def _rows(ledger: CompressionLedger) -> Markup:
    rows = [
        [row.scheme, *row_cells(row, above)]
        for above, row in zip([None, *ledger.rows], ledger.rows, strict=False)
    ]
    return table(["scheme", *COLUMNS], rows)
