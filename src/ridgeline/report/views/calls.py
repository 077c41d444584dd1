"""Calls at the period of frames beside a closed loop, and why some of them took longer."""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline import quantity
from ridgeline.records.calls import CallTimes, Quantile
from ridgeline.report import document as doc

NamedTimes = tuple[str, CallTimes, CallTimes | None]
"""Who was called, in a closed loop, and at a period."""


def paced_blocks(lead: str, seen: Iterable[NamedTimes]) -> list[doc.Block]:
    """A table of the calls at a period; none where nobody was called at one."""
    columns = (
        doc.words(lead),
        doc.Column("calls"),
        doc.Column("p50_seconds", "P50"),
        doc.Column("p99_seconds", "P99"),
        *doc.figures("P99, 95 %"),
        doc.Column("max_seconds", "longest"),
        doc.Column("missed"),
        *doc.figures("P50 paced over closed"),
    )
    rows, period = [], 0.0
    for name, closed, paced in seen:
        if paced is not None:
            period = paced.period_seconds or 0.0
            rows.append((name, *_paced_cells(paced, closed)))
    title = f"Paced, one call every {quantity.seconds(period)}"
    return [doc.Chapter(title, [doc.DataTable(columns, rows)])] if rows else []


def outlier_blocks(lead: str, seen: Iterable[NamedTimes]) -> list[doc.Block]:
    """A table of the slow calls by cause; none where none was slow."""
    rows = [
        (f"{name}{kind}", f"{one.calls} of {times.calls}", one.cause, one.excess_seconds)
        for name, closed, paced in seen
        for kind, times in (("", closed), (", paced", paced))
        if times is not None
        for one in times.outliers
    ]
    columns = (
        doc.words(lead),
        *doc.figures("calls"),
        doc.words("cause"),
        doc.Column("excess_seconds", "beyond the median"),
    )
    note = "Calls that took half as long again as the median, by what happened during them."
    return [doc.Chapter("Outliers", [doc.DataTable(columns, rows)], note)] if rows else []


def bounds(one: Quantile) -> str:
    """The 95 % interval of a percentile; a dash where the calls are too few to bound it."""
    low, high = (
        "–" if bound is None else quantity.seconds(bound)
        for bound in (one.low_seconds, one.high_seconds)
    )
    return f"{low} … {high}"


def _paced_cells(one: CallTimes, closed: CallTimes) -> tuple[doc.Cell, ...]:
    return (
        one.calls,
        one.p50.seconds,
        one.p99.seconds,
        bounds(one.p99),
        one.max_seconds,
        one.missed,
        quantity.ratio(one.p50.seconds / closed.p50.seconds),
    )
