"""What `ridgeline simulate serving` shows: latencies with their interval, and other fleets."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.load_test import Figures
from ridgeline.records.simulated import FleetUse, Simulated
from ridgeline.report import document as doc
from ridgeline.report.plots import Figure, line, plot_layout
from ridgeline.report.views.loadtest import (
    LATENCIES,
    definitions,
    headline_figures,
    over_time,
    rates,
)

COLUMNS = ("mean", "p50", "p90", "p99")
WHAT_IF = (
    doc.words("fleet", ""),
    doc.Column("ttft_p50_seconds", "TTFT p50"),
    doc.Column("ttft_p99_seconds", "TTFT p99"),
    doc.Column("tpot_p50_seconds", "TPOT p50"),
    doc.Column("e2e_p99_seconds", "E2E p99"),
    doc.Column("tokens/s"),
    doc.Column("goodput/s"),
    doc.Column("failed"),
    doc.Column("replica-hours"),
)
INTERVAL_NOTE = (
    "Below each figure stands its 80 % interval, from a slower and a faster engine, as much as step"
    " times are unsure; what prompts share and how long completions get is taken as given."
)
_CURVES = (
    ("TTFT", "ttft_seconds", "--accent"),
    ("TPOT", "tpot_seconds", "--optimizer"),
    ("E2E", "e2e_seconds", "--communication"),
)


def simulation_document(found: Simulated) -> doc.ReportDocument:
    """What the fleet does with the load, and what other fleets would."""
    hours = quantity.digits(found.fleet.replica_seconds / 3600.0)
    note = INTERVAL_NOTE if found.interval is not None else ""
    shown: list[doc.Block] = [
        doc.Lead(found.model, f"{_fleet_line(found)}, {found.arrivals}", "Simulation"),
        doc.Values([*headline_figures(found), ("replica-hours", hours)]),
        doc.Chapter("Latencies", [_latencies(found)], note),
        doc.Lines(rates(found)),
    ]
    if found.what_if:
        others = [(one.change, one.figures, one.fleet) for one in found.what_if]
        rows = [_row(*one) for one in (("as asked", found, found.fleet), *others)]
        table = doc.DataTable(WHAT_IF, rows)
        shown.append(doc.Chapter("What if", [table], "The same requests on other fleets."))
    plots: list[doc.Block] = [
        doc.Chapter("How latencies spread", doc.figure("spread", spread_figure(found), 300)),
        *over_time(found),
        doc.Chapter("Replicas over the run", doc.figure("replicas", replicas_figure(found), 300)),
        definitions(found),
    ]
    if assumed := _assumed(found):
        shown.append(doc.Chapter("Assumed, not measured or given", [doc.Lines(assumed)]))
    shown += [doc.Lines(found.notes, "warning"), doc.Only("page", plots)]
    return doc.ReportDocument(f"Simulation of {found.model}", shown)


def _assumed(found: Simulated) -> list[str]:
    """What is assumed of the fleet, then what is of another one alone."""
    of_others = [
        f"{other.change}: {said}"
        for other in found.what_if
        for said in other.assumed
        if said not in found.assumed
    ]
    return [*found.assumed, *of_others]


def _fleet_line(found: Simulated) -> str:
    """What was simulated, in a few words."""
    asked, fleet = found.deployment, found.fleet
    on = f"{asked['tp']} x {asked['gpu']} in {asked['weights']}" if asked["gpu"] else "as measured"
    most = fleet.most_replicas
    took = quantity.seconds(found.simulated_seconds)
    return (
        f"{most} replica{'s' if most > 1 else ''}, {on}, {asked['kv_blocks']} KV blocks of"
        f" {asked['block_size']}, {fleet.steps:,} steps in {took}"
    )


def _latencies(found: Simulated) -> doc.DataTable:
    """A row of figures per latency, followed by the row of their intervals."""
    rows: list[doc.TableRow] = []
    for name, field in LATENCIES.items():
        one = getattr(found, field)
        if one is None:
            continue
        rows.append(
            doc.TableRow((name, *(quantity.seconds(getattr(one, column)) for column in COLUMNS)))
        )
        band = getattr(found.interval, field, None)
        if band is not None:
            ends = [getattr(band, column) for column in COLUMNS]
            rows.append(
                doc.TableRow(
                    ("", *(f"{_short(low)} to {_short(high)}" for low, high in ends)), "dim"
                )
            )
    return doc.DataTable((doc.words("latency", ""), *doc.figures(*COLUMNS)), rows)


def _row(name: str, found: Figures, fleet: FleetUse) -> tuple[doc.Cell, ...]:
    ttft, tpot, e2e = found.ttft_seconds, found.tpot_seconds, found.e2e_seconds
    return (
        name,
        ttft.p50 if ttft else "–",
        ttft.p99 if ttft else "–",
        tpot.p50 if tpot else "–",
        e2e.p99 if e2e else "–",
        found.output_tokens_per_second,
        quantity.digits(found.goodput),
        found.requests.failed,
        quantity.digits(fleet.replica_seconds / 3600.0),
    )


def _short(value: float | None) -> str:
    return "–" if value is None else quantity.seconds(value)


def spread_figure(found: Simulated) -> Figure | None:
    """The share of the requests that were at least so quick; None where none was answered."""
    traces = []
    for name, field, color in _CURVES:
        values = found.quantiles.get(field)
        if values is not None:
            shares = list(range(len(values)))
            within = [value * 1e3 for value in values]
            traces.append(line(name, within, shares, color, "%{y} % within %{x:.4g} ms"))
    if not traces:
        return None
    layout = plot_layout("ms", "% of requests")
    layout["xaxis"] |= {"type": "log", "tickformat": "~g"}
    return {"data": traces, "layout": layout}


def replicas_figure(found: Simulated) -> Figure | None:
    """How many replicas there were; None where that never changed."""
    changes = found.fleet.replicas
    if len({count for _, count in changes[:-1]}) < 2:
        return None
    at, counts = [at for at, _ in changes], [count for _, count in changes]
    trace = line("replicas", at, counts, "--accent", "%{y} from %{x:.4g} s", shape="hv")
    return {"data": [trace], "layout": plot_layout("s since the start", "replicas")}
