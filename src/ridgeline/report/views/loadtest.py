"""What `ridgeline loadtest` shows, and most of what `simulate serving` does."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline import quantity
from ridgeline.records.load_test import CurvePoint, LoadTest, Percentiles, Slo, TimelinePoint
from ridgeline.report import document as doc
from ridgeline.report.plots import Figure, line, plot_layout, rounded, shade

CURVE_NOTE = (
    "Each point is a stage: what the server gave against what a request waited. Hollow points are"
    " saturated: their latency depends on how long one waits."
)
SHADED = "The drain and the warm-up are shaded."
LATENCIES = {
    "TTFT": "ttft_seconds",
    "TPOT": "tpot_seconds",
    "ITL": "itl_seconds",
    "stall": "stall_seconds",
    "E2E": "e2e_seconds",
}
"""Shown name → field of `LoadTest`."""
CURVE_COLUMNS = (
    doc.Column("offered_per_second", "offered/s"),
    doc.Column("finished_per_second", "answered/s"),
    doc.Column("output_tokens_per_second", "tokens/s"),
    doc.Column("ttft_p50_seconds", "TTFT p50"),
    doc.Column("ttft_p99_seconds", "TTFT p99"),
    doc.Column("tpot_p50_seconds", "TPOT p50"),
    doc.Column("goodput", "goodput/s"),
)


def load_test_document(found: LoadTest) -> doc.ReportDocument:
    """Latencies, rates, what the tester says of itself, and the run over time."""
    shown: list[doc.Block] = [
        doc.Lead(found.model, f"{found.url}, {found.arrivals}", "Load test"),
        doc.Values(headline_figures(found)),
    ]
    if found.curve:
        stages = doc.DataTable(
            (*CURVE_COLUMNS, doc.words("verdict", "")),
            [(*(getattr(point, one.field) for one in CURVE_COLUMNS), _verdict(point))
             for point in found.curve],
        )  # fmt: skip
        curve = [*doc.figure("curve", curve_figure(found), 420), stages]
        shown.append(doc.Chapter("Latency over throughput", curve, CURVE_NOTE))
    shown.append(doc.Chapter("Latencies", [_latencies(found)]))
    shown += [
        doc.Lines(rates(found)),
        doc.Lines([_tester(found)], "dim"),
        doc.Lines(found.notes, "warning"),
    ]
    shown += [doc.Only("page", over_time(found)), definitions(found)]
    return doc.ReportDocument(f"Load test of {found.model}", shown)


def headline_figures(found: LoadTest) -> list[tuple[str, doc.Words]]:
    """The figures to read first."""
    shown: list[tuple[str, doc.Words]] = [
        ("requests/s answered", quantity.digits(found.requests_per_second))
    ]
    if found.output_tokens_per_second is not None:
        shown.append(("output tokens/s", quantity.count(found.output_tokens_per_second)))
    if found.ttft_seconds is not None:
        shown.append(("TTFT p99", quantity.seconds(found.ttft_seconds.p99)))
    if found.tpot_seconds is not None:
        shown.append(("TPOT p50", quantity.seconds(found.tpot_seconds.p50)))
    shown.append(("goodput, requests/s", quantity.digits(found.goodput)))
    if found.max_rate is not None:
        shown.append(("sustained, requests/s", quantity.digits(found.max_rate)))
    return shown


def _verdict(point: CurvePoint) -> doc.Words:
    return doc.Phrase(f"saturated: {point.why}", "warning") if point.saturated else "held"


def _latencies(found: LoadTest) -> doc.DataTable:
    columns = (doc.words("latency", ""), *doc.figures("mean", "p50", "p90", "p95", "p99", "p99.9"))
    rows = [(name, *_cells(getattr(found, field))) for name, field in LATENCIES.items()]
    return doc.DataTable(columns, rows)


def _cells(one: Percentiles | None) -> tuple[doc.Cell, ...]:
    if one is None:
        return ("–",) * 6
    values = (one.mean, one.p50, one.p90, one.p95, one.p99, one.p999)
    return tuple(quantity.seconds(value) for value in values)


def rates(found: LoadTest) -> list[str]:
    """What went through, and how much of it was good."""
    asked, window = found.requests, found.window_seconds[1] - found.window_seconds[0]
    cut = f", {asked.cancelled} cut off" if asked.cancelled else ""
    measured = f"{asked.in_window} measured in a window of {quantity.seconds(window)}"
    sent = f"{asked.sent} requests sent, {asked.ok} answered, {asked.failed} failed{cut}"
    lines = [f"{sent}; {measured}"]
    lines += [f"  {times} × {error}" for error, times in asked.failures.items()]
    through = f"{quantity.digits(found.requests_per_second)} requests/s"
    if found.output_tokens_per_second is not None:
        through += f", {quantity.count(found.output_tokens_per_second)} output tokens/s"
    if found.total_tokens_per_second is not None:
        through += f", {quantity.count(found.total_tokens_per_second)} with the input"
    lines.append(through)
    lines.append(
        f"goodput {quantity.digits(found.goodput)} requests/s"
        f" ({quantity.percent(found.goodput_share)} of them), {_objectives(found.slo)}"
    )
    if found.max_rate is not None:
        lines.append(f"sustains {quantity.digits(found.max_rate)} requests/s")
    return lines


def _objectives(slo: Slo) -> str:
    named = {
        "TTFT": slo.ttft_seconds,
        "ITL": slo.itl_seconds,
        "TPOT": slo.tpot_seconds,
        "E2E": slo.e2e_seconds,
    }
    given = [f"{name} ≤ {quantity.seconds(value)}" for name, value in named.items()
             if value is not None]  # fmt: skip
    return "with " + ", ".join(given) if given else "without any objective"


def _tester(found: LoadTest) -> str:
    """What the load tester says of itself."""
    own = found.client
    return (
        f"load tester: send lag p99 {quantity.seconds(own.send_lag_p99)}, timer lag p99"
        f" {quantity.seconds(own.timer_lag_p99)}, {quantity.percent(own.cpu_share)} of a core"
    )


def definitions(found: LoadTest) -> doc.Chapter:
    """What each figure means."""
    table = doc.DataTable(
        (doc.words("figure"), doc.words("meaning")), list(found.definitions.items())
    )
    return doc.Chapter("Definitions", [table])


# -- plots -----------------------------------------------------------------------------------------


def curve_figure(found: LoadTest) -> Figure | None:
    """TTFT and TPOT against throughput, stage by stage; None without a sweep."""
    points = found.curve
    if not points:
        return None
    tokens = all(point.output_tokens_per_second is not None for point in points)
    along = [
        (point.output_tokens_per_second if tokens else point.finished_per_second) or 0.0
        for point in points
    ]
    traces = [
        line(
            name,
            along,
            _milliseconds([getattr(point, field) for point in points]),
            color,
            "%{text}: %{y:.4g} ms at %{x:.4g}",
            mode="lines+markers",
            text=[f"{quantity.digits(point.offered_per_second)} requests/s" for point in points],
            marker={
                "size": 9,
                "symbol": ["circle-open" if point.saturated else "circle" for point in points],
            },
        )
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


def over_time(found: LoadTest) -> list[doc.Block]:
    """Requests, time to first token and tokens, slice by slice."""
    points = found.timeline
    requests = {
        "sent/s": ("sent_per_second", "--muted"),
        "answered/s": ("finished_per_second", "--accent"),
        "failed/s": ("failed_per_second", "--bad"),
        "under way": ("in_flight", "--optimizer"),
    }
    if not found.requests.failed:
        del requests["failed/s"]
    tokens = [point.output_tokens_per_second for point in points]
    drawn = {
        "Requests over the run": ("requests", "requests", [
            (name, [getattr(point, field) for point in points], color)
            for name, (field, color) in requests.items()
        ]),
        "Time to first token over the run": ("ttft", "ms", [
            ("p50", _milliseconds([point.ttft_p50_seconds for point in points]), "--accent"),
            ("p99", _milliseconds([point.ttft_p99_seconds for point in points]),
             "--communication"),
        ]),
        "Output tokens over the run": ("tokens", "tokens/s", [
            ("output tokens/s", tokens, "--accent"),
        ] if None not in tokens else []),
    }  # fmt: skip
    return [
        doc.Chapter(title, doc.figure(name, _over_time(found, unit, lines), 300), SHADED)
        for title, (name, unit, lines) in drawn.items()
        if points and lines
    ]


def _over_time(
    found: LoadTest, unit: str, lines: Sequence[tuple[str, Sequence[float | None], str]]
) -> Figure:
    points = found.timeline
    middles = [point.at_seconds + point.seconds / 2 for point in points]
    layout = plot_layout("s since the start", unit)
    layout["yaxis"]["rangemode"] = "tozero"
    layout["shapes"] = _shades(found.window_seconds, points)
    hover = "%{y:.4g} at %{x:.4g} s"
    return {
        "data": [line(name, middles, values, color, hover) for name, values, color in lines],
        "layout": layout,
    }


def _shades(window: tuple[float, float], points: Sequence[TimelinePoint]) -> list[Figure]:
    """What lies outside the window."""
    end = points[-1].at_seconds + points[-1].seconds
    outside = ((0.0, window[0]), (window[1], end))
    return [shade(rounded(low), rounded(high), "--band") for low, high in outside if high > low]


def _milliseconds(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else value * 1e3 for value in values]
