"""`ridgeline simulate serving --html`: how latencies spread, the timeline, other fleets."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.simulated import Simulated
from ridgeline.report import sections
from ridgeline.report.figures import Figure, plot_layout, rounded
from ridgeline.report.load_test_page import requests_figure, tokens_figure, ttft_figure
from ridgeline.report.load_test_terminal import rates
from ridgeline.report.markup import Markup, element, table
from ridgeline.report.page_frame import drawn, whole_page
from ridgeline.report.simulated_terminal import (
    COLUMNS,
    INTERVAL_NOTE,
    WHAT_IF_COLUMNS,
    fleet_line,
    latency_rows,
    what_if_rows,
)

_CURVES = (
    ("TTFT", "ttft_seconds", "--accent"),
    ("TPOT", "tpot_seconds", "--optimizer"),
    ("E2E", "e2e_seconds", "--communication"),
)


def simulated_page(found: Simulated) -> str:
    """The page."""
    plots: dict[str, Figure] = {}
    note = INTERVAL_NOTE[0].upper() + INTERVAL_NOTE[1:] + "." if found.interval else ""
    body = [
        _header(found),
        sections.section("Latencies", note, table(["", *COLUMNS], latency_rows(found))),
    ]
    if found.what_if:
        rows = table(list(WHAT_IF_COLUMNS), what_if_rows(found))
        body.append(sections.section("What if", "The same requests on other fleets.", rows))
    body += [
        sections.section(title, said, *places)
        for title, said, name, figure in (
            ("How latencies spread", "", "spread", spread_figure(found)),
            ("Requests over the run", _SHADED, "requests", requests_figure(found)),
            ("Time to first token over the run", _SHADED, "ttft", ttft_figure(found)),
            ("Output tokens over the run", _SHADED, "tokens", tokens_figure(found)),
            ("Replicas over the run", "", "replicas", replicas_figure(found)),
        )
        if (places := drawn(name, figure, plots, 300))
    ]
    meanings = [[name, meaning] for name, meaning in found.definitions.items()]
    body.append(
        sections.section("Definitions", "", table(["figure", "meaning"], meanings, text_columns=2))
    )
    return whole_page(f"Simulation of {found.model}", body, plots)


_SHADED = "The drain and the warm-up are shaded."


def spread_figure(found: Simulated) -> Figure | None:
    """Share of the requests that were at least so quick; None where none was answered."""
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": [rounded(value * 1e3) for value in found.quantiles[field]],
            "y": list(range(len(found.quantiles[field]))),
            "line": {"color": color, "width": 2},
            "hovertemplate": "%{y} % within %{x:.4g} ms<extra></extra>",
        }
        for name, field, color in _CURVES
        if field in found.quantiles
    ]
    if not traces:
        return None
    layout = plot_layout("ms", "% of requests")
    layout["xaxis"] |= {"type": "log", "tickformat": "~g"}
    return {"data": traces, "layout": layout}


def replicas_figure(found: Simulated) -> Figure | None:
    """How many there were; None where that never changed."""
    changes = found.fleet.replicas
    counts = {count for _, count in changes[:-1]}
    if len(counts) < 2:
        return None
    trace = {
        "type": "scatter",
        "mode": "lines",
        "name": "replicas",
        "x": [rounded(at) for at, _ in changes],
        "y": [count for _, count in changes],
        "line": {"color": "--accent", "width": 2, "shape": "hv"},
        "hovertemplate": "%{y} from %{x:.4g} s<extra></extra>",
    }
    return {"data": [trace], "layout": plot_layout("s since the start", "replicas")}


def _header(found: Simulated) -> Markup:
    facts = [("requests/s answered", quantity.digits(found.requests_per_second))]
    if found.output_tokens_per_second is not None:
        facts.append(("output tokens/s", quantity.count(found.output_tokens_per_second)))
    if found.ttft_seconds is not None:
        facts.append(("TTFT p99", quantity.seconds(found.ttft_seconds.p99)))
    if found.tpot_seconds is not None:
        facts.append(("TPOT p50", quantity.seconds(found.tpot_seconds.p50)))
    facts.append(("goodput, requests/s", quantity.digits(found.goodput)))
    facts.append(("replica-hours", quantity.digits(found.fleet.replica_seconds / 3600.0)))
    return element(
        "header",
        element("p", element("b", "Simulation"), f" · {fleet_line(found)}", class_="origin"),
        element("h1", found.model),
        element("p", found.arrivals, class_="sub"),
        sections.tiles(facts),
        element("ul", *(element("li", line) for line in rates(found))),
        sections.remarks(found.notes),
    )
