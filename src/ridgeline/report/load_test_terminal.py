"""`ridgeline loadtest` in the terminal: latencies, rates, what the tester says of itself."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from ridgeline import quantity
from ridgeline.records.load_test import CurvePoint, LoadTest, Percentiles, Slo
from ridgeline.report.fitted_table import FittedTable

LATENCIES = (
    ("TTFT", "ttft_seconds"),
    ("TPOT", "tpot_seconds"),
    ("ITL", "itl_seconds"),
    ("stall", "stall_seconds"),
    ("E2E", "e2e_seconds"),
)
"""Shown name → field of `LoadTest`."""
COLUMNS = ("mean", "p50", "p90", "p95", "p99", "p99.9")


def load_test_view(found: LoadTest) -> RenderableType:
    """The whole answer."""
    parts: list[RenderableType] = [
        Text.assemble((found.model, "bold"), f" at {found.url} · {found.arrivals}"),
        Text(),
    ]
    if found.curve:
        parts += [_curve(found), Text()]
    parts += [_latencies(found), Text(), Text("\n".join(rates(found))), Text()]
    parts.append(Text(client_line(found), style="dim"))
    parts += [Text(note, style="yellow") for note in found.notes]
    parts += [Text(), Text("Definitions", style="bold")]
    parts += [
        Text(f"{name}: {meaning}", style="dim") for name, meaning in found.definitions.items()
    ]
    return Group(*parts)


def rates(found: LoadTest) -> list[str]:
    """What went through, and how much of it was good."""
    asked, window = found.requests, found.window_seconds[1] - found.window_seconds[0]
    lines = [
        f"{asked.sent} requests sent, {asked.ok} answered, {asked.failed} failed"
        + (f", {asked.cancelled} cut off" if asked.cancelled else "")
        + f"; {asked.in_window} measured in a window of {quantity.seconds(window)}"
    ]
    lines += [f"  {times} × {error}" for error, times in asked.failures.items()]
    through = f"{quantity.digits(found.requests_per_second)} requests/s"
    if found.output_tokens_per_second is not None:
        through += f", {quantity.count(found.output_tokens_per_second)} output tokens/s"
    if found.total_tokens_per_second is not None:
        through += f", {quantity.count(found.total_tokens_per_second)} with the input"
    lines.append(through)
    lines.append(
        f"goodput {quantity.digits(found.goodput)} requests/s"
        f" ({quantity.percent(found.goodput_share)} of them), {objectives(found.slo)}"
    )
    if found.max_rate is not None:
        lines.append(f"sustains {quantity.digits(found.max_rate)} requests/s")
    return lines


def objectives(slo: Slo) -> str:
    """The objectives in words."""
    named = (
        ("TTFT", slo.ttft_seconds),
        ("ITL", slo.itl_seconds),
        ("TPOT", slo.tpot_seconds),
        ("E2E", slo.e2e_seconds),
    )
    given = [f"{name} ≤ {quantity.seconds(value)}" for name, value in named if value is not None]
    return "with " + ", ".join(given) if given else "without any objective"


def client_line(found: LoadTest) -> str:
    """What the load tester says of itself."""
    own = found.client
    return (
        f"load tester: send lag p99 {quantity.seconds(own.send_lag_p99)}, timer lag p99"
        f" {quantity.seconds(own.timer_lag_p99)}, {quantity.percent(own.cpu_share)} of a core"
    )


def latency_cells(one: Percentiles | None) -> list[str]:
    """The columns of a latency."""
    if one is None:
        return ["–"] * len(COLUMNS)
    values = (one.mean, one.p50, one.p90, one.p95, one.p99, one.p999)
    return [quantity.seconds(value) for value in values]


def curve_cells(point: CurvePoint) -> list[str]:
    """A stage of a sweep, cell by cell, under `CURVE_COLUMNS`."""
    tokens = point.output_tokens_per_second
    return [
        quantity.digits(point.offered_per_second),
        quantity.digits(point.finished_per_second),
        "–" if tokens is None else quantity.count(tokens),
        _seconds(point.ttft_p50_seconds),
        _seconds(point.ttft_p99_seconds),
        _seconds(point.tpot_p50_seconds),
        quantity.digits(point.goodput),
        f"saturated: {point.why}" if point.saturated else "held",
    ]


CURVE_COLUMNS = (
    "offered/s",
    "answered/s",
    "tokens/s",
    "TTFT p50",
    "TTFT p99",
    "TPOT p50",
    "goodput/s",
    "",
)


def _seconds(value: float | None) -> str:
    return "–" if value is None else quantity.seconds(value)


def _curve(found: LoadTest) -> FittedTable:
    table = FittedTable(box=None, pad_edge=False)
    for name in CURVE_COLUMNS:
        table.add_column(name, justify="right" if name else "left")
    for point in found.curve:
        table.add_row(*(Text(cell) for cell in curve_cells(point)))
    return table


def _latencies(found: LoadTest) -> FittedTable:
    table = FittedTable(box=None, pad_edge=False)
    table.add_column("")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for name, field in LATENCIES:
        table.add_row(Text(name, style="bold"), *latency_cells(getattr(found, field)))
    return table
