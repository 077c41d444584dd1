"""What `ridgeline simulate batching` shows: requests as dots on their way, and their waiting."""

from __future__ import annotations

from typing import Literal

from ridgeline import quantity
from ridgeline.records.batching_playback import BatchingPlayback, PlayedBatching
from ridgeline.records.load_test import Percentiles
from ridgeline.report import document as doc
from ridgeline.report.plots import LOOKS, Figure, limit_line, plot_layout, rounded

PLACES = ("queue", "prefill", "decode", "done")
_COLOURS = (LOOKS[3].color, LOOKS[2].color, LOOKS[1].color, "--muted")
_SYMBOLS = ("circle-open", "diamond", "circle", "square")
_IN_A_COLUMN = 12


def batching_playback_document(found: BatchingPlayback) -> doc.ReportDocument:
    """The table of the three, the moment, the ways of all requests."""
    title = f"Batching of {found.model} on {found.gpu}"
    return doc.ReportDocument(
        title,
        [
            doc.Lead(title, waiting_sentence(found), f"{found.rate_per_second:g} requests/s"),
            way_table(found),
            *doc.figure("moment", moment_figure(found), 420),
            *doc.figure("ways", ways_figure(found), 560),
            doc.Chapter("Assumed, not measured or given", [doc.Lines(found.assumed)]),
        ],
    )


def waiting_sentence(found: BatchingPlayback) -> str:
    """How long the first token takes under each."""
    parts = [
        f"{one.batching} {quantity.seconds(one.ttft_seconds.p99)}"
        for one in found.ways
        if one.ttft_seconds is not None
    ]
    moment = quantity.seconds(found.moment_seconds)
    queues = ", ".join(f"{one.batching} {len(one.at_moment.queue)}" for one in found.ways)
    return (
        f"To the first token (P99): {', '.join(parts)}. At {moment} there wait: {queues}; "
        f"{found.max_sequences} seats."
    )


def way_table(found: BatchingPlayback) -> doc.DataTable:
    """The three in figures."""
    columns = (
        doc.words("batching"),
        doc.Column("ttft_p50_seconds", "TTFT P50"),
        doc.Column("ttft_p99_seconds", "TTFT P99"),
        doc.Column("itl_p50_seconds", "ITL P50"),
        doc.Column("itl_p99_seconds", "ITL P99"),
        doc.Column("tokens_per_second", "tokens/s"),
        doc.Column("ended_seconds", "all done"),
    )
    rows = [
        (
            one.batching,
            _at(one.ttft_seconds, "p50"),
            _at(one.ttft_seconds, "p99"),
            _at(one.itl_seconds, "p50"),
            _at(one.itl_seconds, "p99"),
            one.output_tokens_per_second,
            one.ended_seconds,
        )
        for one in found.ways
    ]
    return doc.DataTable(columns, rows)


def _at(spread: Percentiles | None, name: Literal["p50", "p99"]) -> float | None:
    return None if spread is None else spread.p50 if name == "p50" else spread.p99


def moment_figure(found: BatchingPlayback) -> Figure:
    """Every request as a dot in queue, prefill, decode or done, at the moment looked at."""
    traces = [
        _dots(place, found.ways, column)
        for column, place in enumerate(PLACES)
        if any(getattr(one.at_moment, place) for one in found.ways)
    ]
    layout = plot_layout("", "")
    layout["xaxis"] |= {"range": [-0.2, 4.2], "tickvals": [0.4, 1.4, 2.4, 3.4],
                        "ticktext": list(PLACES), "fixedrange": True}  # fmt: skip
    layout["yaxis"] |= {
        "range": [-0.55, len(found.ways) - 0.45],
        "tickvals": list(range(len(found.ways))),
        "ticktext": [one.batching for one in found.ways],
        "fixedrange": True,
    }
    return {"data": traces, "layout": layout}


def _dots(place: str, ways: list[PlayedBatching], column: int) -> Figure:
    x, y, names = [], [], []
    for row, way in enumerate(ways):
        for number, request in enumerate(getattr(way.at_moment, place)):
            x.append(rounded(column + 0.05 + 0.07 * (number // _IN_A_COLUMN)))
            y.append(rounded(row - 0.38 + 0.065 * (number % _IN_A_COLUMN)))
            names.append(f"request {request}")
    return {
        "type": "scatter",
        "mode": "markers",
        "name": place,
        "x": x,
        "y": y,
        "text": names,
        "marker": {"size": 8, "color": _COLOURS[column], "symbol": _SYMBOLS[column]},
        "hovertemplate": "%{text}<extra>" + place + "</extra>",
    }


def ways_figure(found: BatchingPlayback) -> Figure:
    """Each request from its arrival to its end, and the moment looked at."""
    traces: list[Figure] = []
    for column, (place, begin, end) in enumerate(
        (
            ("queue", "arrived_seconds", "begun_seconds"),
            ("prefill", "begun_seconds", "first_token_seconds"),
            ("decode", "first_token_seconds", "ended_seconds"),
        )
    ):
        x: list[float | None] = []
        y: list[float | None] = []
        offset = 0
        for way in found.ways:
            for number, request in enumerate(way.requests):
                first, last = getattr(request, begin), getattr(request, end)
                if first is not None and last is not None:
                    x += [rounded(first), rounded(last), None]
                    y += [offset + number, offset + number, None]
            offset += round(len(way.requests) * 1.15)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": place,
                "x": x,
                "y": y,
                "line": {"color": _COLOURS[column], "width": (1, 3, 2)[column]},
                "hovertemplate": "%{x:.3g} s<extra>" + place + "</extra>",
            }
        )
    size = len(found.ways[0].requests)
    step = round(size * 1.15)
    layout = plot_layout("seconds", "")
    layout["yaxis"] |= {
        "autorange": "reversed",
        "tickvals": [place * step + size / 2 for place in range(len(found.ways))],
        "ticktext": [one.batching for one in found.ways],
    }
    at = rounded(found.moment_seconds)
    layout["shapes"] = [limit_line(x=at, width=1.5)]
    return {"data": traces, "layout": layout}
