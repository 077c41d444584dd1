"""`ridgeline simulate serving` in the terminal: latencies with their interval, and other fleets."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from ridgeline import quantity
from ridgeline.records.load_test import Figures, Percentiles
from ridgeline.records.simulated import FleetUse, Simulated
from ridgeline.report.fitted_table import FittedTable
from ridgeline.report.load_test_terminal import LATENCIES, rates

COLUMNS = ("mean", "p50", "p90", "p99")
WHAT_IF_COLUMNS = (
    "",
    "TTFT p50",
    "TTFT p99",
    "TPOT p50",
    "E2E p99",
    "tokens/s",
    "goodput/s",
    "failed",
    "replica-hours",
)


def simulated_view(found: Simulated) -> RenderableType:
    """The whole answer."""
    parts: list[RenderableType] = [
        Text.assemble((found.model, "bold"), f" · {fleet_line(found)} · {found.arrivals}"),
        Text(),
        _latencies(found),
        Text(),
        Text("\n".join(rates(found))),
    ]
    if found.what_if:
        parts += [Text(), _what_if(found)]
    parts += [Text(note, style="yellow") for note in found.notes]
    if found.interval is not None:
        parts += [Text(), Text(INTERVAL_NOTE, style="dim")]
    return Group(*parts)


INTERVAL_NOTE = (
    "below each figure its 80 % interval, from a slower and a faster engine, as much as step times"
    " are unsure; what prompts share and how long answers get is taken as given"
)


def fleet_line(found: Simulated) -> str:
    """What was simulated, in a few words."""
    asked, fleet = found.deployment, found.fleet
    on = f"{asked['tp']} x {asked['gpu']} in {asked['weights']}" if asked["gpu"] else "as measured"
    most = fleet.most_replicas
    took = quantity.seconds(found.simulated_seconds)
    return (
        f"{most} replica{'s' if most > 1 else ''}, {on}, {asked['kv_blocks']} KV blocks of"
        f" {asked['block_size']}, {fleet.steps:,} steps in {took}"
    )


def latency_rows(found: Simulated) -> list[list[str]]:
    """Name and cells under `COLUMNS`; a row of intervals follows each row of figures."""
    rows = []
    for name, field in LATENCIES:
        one: Percentiles | None = getattr(found, field)
        if one is None:
            continue
        rows.append([name, *(quantity.seconds(getattr(one, column)) for column in COLUMNS)])
        band = getattr(found.interval, field, None)
        if band is not None:
            ends = [getattr(band, column) for column in COLUMNS]
            rows.append(["", *(f"{_short(low)} to {_short(high)}" for low, high in ends)])
    return rows


def what_if_rows(found: Simulated) -> list[list[str]]:
    """This fleet and the others, under `WHAT_IF_COLUMNS`."""
    base = _row("as asked", found, found.fleet)
    return [base, *(_row(one.change, one.figures, one.fleet) for one in found.what_if)]


def _row(name: str, figures: Figures, fleet: FleetUse) -> list[str]:
    ttft, tpot, e2e = figures.ttft_seconds, figures.tpot_seconds, figures.e2e_seconds
    tokens = figures.output_tokens_per_second
    return [
        name,
        _short(ttft.p50 if ttft else None),
        _short(ttft.p99 if ttft else None),
        _short(tpot.p50 if tpot else None),
        _short(e2e.p99 if e2e else None),
        "–" if tokens is None else quantity.count(tokens),
        quantity.digits(figures.goodput),
        str(figures.requests.failed),
        quantity.digits(fleet.replica_seconds / 3600.0),
    ]


def _short(value: float | None) -> str:
    return "–" if value is None else quantity.seconds(value)


def _latencies(found: Simulated) -> FittedTable:
    table = FittedTable(box=None, pad_edge=False)
    table.add_column("")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for name, *cells in latency_rows(found):
        style = "" if name else "dim"
        table.add_row(Text(name, style="bold"), *(Text(cell, style=style) for cell in cells))
    return table


def _what_if(found: Simulated) -> FittedTable:
    table = FittedTable(box=None, pad_edge=False)
    for name in WHAT_IF_COLUMNS:
        table.add_column(name, justify="right" if name else "left")
    for cells in what_if_rows(found):
        table.add_row(*(Text(cell) for cell in cells))
    return table
