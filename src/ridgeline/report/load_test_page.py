"""`ridgeline loadtest --html`: the latency-throughput curve and the timeline, one file."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline import quantity
from ridgeline.records.load_test import CurvePoint, LoadTest, TimelinePoint
from ridgeline.report import sections
from ridgeline.report.figures import Figure, plot_layout, rounded
from ridgeline.report.load_test_terminal import (
    COLUMNS,
    CURVE_COLUMNS,
    LATENCIES,
    client_line,
    curve_cells,
    latency_cells,
    rates,
)
from ridgeline.report.markup import Markup, element, joined, table
from ridgeline.report.page_frame import drawn, whole_page

CURVE_NOTE = (
    "Each point is a stage: what the server gave against what a request waited. Hollow points are"
    " saturated: their latency depends on how long one waits."
)


def load_test_page(found: LoadTest) -> str:
    """The page."""
    plots: dict[str, Figure] = {}
    body = [_header(found)]
    curve = drawn("curve", curve_figure(found), plots, 420)
    if curve:
        rows = [curve_cells(point) for point in found.curve]
        stages = table(list(CURVE_COLUMNS), rows, text_columns=0)
        body.append(sections.section("Latency over throughput", CURVE_NOTE, *curve, stages))
    body.append(sections.section("Latencies", "", _latencies(found)))
    body += [
        sections.section(title, "The drain and the warm-up are shaded.", *places)
        for title, name, figure in (
            ("Requests over the run", "requests", requests_figure(found)),
            ("Time to first token over the run", "ttft", ttft_figure(found)),
            ("Output tokens over the run", "tokens", tokens_figure(found)),
        )
        if (places := drawn(name, figure, plots, 300))
    ]
    meanings = [[name, meaning] for name, meaning in found.definitions.items()]
    body.append(
        sections.section("Definitions", "", table(["figure", "meaning"], meanings, text_columns=2))
    )
    return whole_page(f"Load test of {found.model}", body, plots)


def curve_figure(found: LoadTest) -> Figure | None:
    """TTFT and TPOT against throughput, stage by stage; None without a sweep."""
    points = found.curve
    if not points:
        return None
    tokens = all(point.output_tokens_per_second is not None for point in points)
    along = [
        rounded((point.output_tokens_per_second if tokens else point.finished_per_second) or 0.0)
        for point in points
    ]
    traces = [
        _curve_line(name, along, points, field, color)
        for name, field, color in (
            ("TTFT p50", "ttft_p50_seconds", "--accent"),
            ("TTFT p99", "ttft_p99_seconds", "--communication"),
            ("TPOT p50", "tpot_p50_seconds", "--optimizer"),
        )
    ]
    layout = plot_layout("output tokens/s" if tokens else "requests/s answered", "ms")
    layout["yaxis"] |= {"type": "log", "tickformat": "~g"}
    layout["xaxis"]["rangemode"] = "tozero"
    return {"data": traces, "layout": layout}


def _curve_line(
    name: str, along: list[float], points: Sequence[CurvePoint], field: str, color: str
) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": along,
        "y": _thousandths([getattr(point, field) for point in points]),
        "text": [f"{quantity.digits(point.offered_per_second)} requests/s" for point in points],
        "line": {"color": color, "width": 2},
        "marker": {
            "size": 9,
            "symbol": ["circle-open" if point.saturated else "circle" for point in points],
        },
        "hovertemplate": "%{text}: %{y:.4g} ms at %{x:.4g}<extra></extra>",
    }


def requests_figure(found: LoadTest) -> Figure | None:
    """Sent, answered, failed, and under way."""
    lines = (
        ("sent/s", "sent_per_second", "--muted"),
        ("answered/s", "finished_per_second", "--accent"),
        ("failed/s", "failed_per_second", "--bad"),
        ("under way", "in_flight", "--optimizer"),
    )
    shown = lines if found.requests.failed else [line for line in lines if line[2] != "--bad"]
    return _over_time(
        found, "requests", [(n, [getattr(p, f) for p in found.timeline], c) for n, f, c in shown]
    )


def ttft_figure(found: LoadTest) -> Figure | None:
    """TTFT of the requests planned in each slice."""
    points = found.timeline
    return _over_time(
        found,
        "ms",
        [
            ("p50", _thousandths([point.ttft_p50_seconds for point in points]), "--accent"),
            ("p99", _thousandths([point.ttft_p99_seconds for point in points]), "--communication"),
        ],
    )


def tokens_figure(found: LoadTest) -> Figure | None:
    """Output tokens per second; None where the server did not count them."""
    values = [point.output_tokens_per_second for point in found.timeline]
    if None in values:
        return None
    return _over_time(found, "tokens/s", [("output tokens/s", values, "--accent")])


def _over_time(
    found: LoadTest, y_title: str, lines: Sequence[tuple[str, Sequence[float | None], str]]
) -> Figure | None:
    points = found.timeline
    if not points:
        return None
    middles = [rounded(point.at_seconds + point.seconds / 2) for point in points]
    layout = plot_layout("s since the start", y_title)
    layout["yaxis"]["rangemode"] = "tozero"
    layout["shapes"] = _shades(found.window_seconds, points)
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": middles,
            "y": [None if value is None else rounded(value) for value in values],
            "line": {"color": color, "width": 2},
            "hovertemplate": "%{y:.4g} at %{x:.4g} s<extra></extra>",
        }
        for name, values, color in lines
    ]
    return {"data": traces, "layout": layout}


def _shades(window: tuple[float, float], points: Sequence[TimelinePoint]) -> list[Figure]:
    """What lies outside the window."""
    end = points[-1].at_seconds + points[-1].seconds
    return [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": rounded(low),
            "x1": rounded(high),
            "y0": 0,
            "y1": 1,
            "fillcolor": "--band",
            "layer": "below",
            "line": {"width": 0},
        }
        for low, high in ((0.0, window[0]), (window[1], end))
        if high > low
    ]


def _thousandths(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else rounded(value * 1e3) for value in values]


def _header(found: LoadTest) -> Markup:
    facts = [("requests/s answered", quantity.digits(found.requests_per_second))]
    if found.output_tokens_per_second is not None:
        facts.append(("output tokens/s", quantity.count(found.output_tokens_per_second)))
    for name, one in (("TTFT p99", found.ttft_seconds), ("TPOT p50", found.tpot_seconds)):
        if one is not None:
            value = one.p99 if name.endswith("p99") else one.p50
            facts.append((name, quantity.seconds(value)))
    facts.append(("goodput, requests/s", quantity.digits(found.goodput)))
    if found.max_rate is not None:
        facts.append(("sustained, requests/s", quantity.digits(found.max_rate)))
    return element(
        "header",
        element("p", element("b", "Load test"), f" · {found.url}", class_="origin"),
        element("h1", found.model),
        element("p", found.arrivals, class_="sub"),
        sections.tiles(facts),
        element("ul", *(element("li", line) for line in (*rates(found), client_line(found)))),
        sections.remarks(found.notes),
    )


def _latencies(found: LoadTest) -> Markup:
    rows = [[name, *latency_cells(getattr(found, field))] for name, field in LATENCIES]
    return joined([table(["", *COLUMNS], rows)])
