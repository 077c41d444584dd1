"""What `ridgeline predict inference --batches` shows: throughput against latency over the batch."""

from __future__ import annotations

from collections.abc import Callable

from ridgeline import quantity
from ridgeline.records.batch_curve import BatchCurve, BatchCurves
from ridgeline.records.vision_estimate import VisionInferenceEstimate
from ridgeline.report import document as doc
from ridgeline.report.plots import LOOKS, Figure, limit_line, plot_layout, rounded

_A_DOUBLING = 0.30103
"""The step of an axis of powers of two, as plotly has it: log10 of 2."""
_DASHES = ("solid", "dash", "dot", "dashdot")
_SYMBOLS = ("circle", "square", "diamond", "cross")


def batch_curves_document(found: BatchCurves) -> doc.ReportDocument:
    """The knee and the largest batch in time, then every point."""
    title = f"{found.model} on {found.device} over the batch"
    return doc.ReportDocument(
        title,
        [
            doc.Lead(title, knee_sentence(found.curves[0], found.within_seconds), found.precision),
            *doc.figure("latency", latency_figure(found)),
            *doc.figure("throughput", throughput_figure(found)),
            curve_table(found),
        ],
    )


def knee_sentence(curve: BatchCurve, within_seconds: float | None) -> str:
    """Where a curve bends, and how far the time allowed reaches."""
    said = f"From batch {curve.knee_batch} on {curve.software} has nine tenths of its throughput"
    if within_seconds is None:
        return said
    allowed = quantity.seconds(within_seconds)
    if curve.largest_in_time is None:
        return f"{said}; no batch is answered within {allowed}"
    return f"{said}; its largest batch answered within {allowed} is {curve.largest_in_time}"


def latency_figure(found: BatchCurves) -> Figure:
    """Latency over the batch, with the time allowed as a line."""
    figure = _lines(found, lambda one: 1e3 * one.latency_seconds, "ms", "ms of one batch")
    if found.within_seconds is not None:
        at = rounded(1e3 * found.within_seconds)
        figure["layout"]["shapes"] = [limit_line(y=at)]
    return figure


def throughput_figure(found: BatchCurves) -> Figure:
    """Images per second over the batch, the knee of each software marked."""
    figure = _lines(found, lambda one: one.images_per_second, "images/s", "images per second")
    figure["layout"]["shapes"] = [
        limit_line(x=curve.knee_batch, color=LOOKS[place % len(LOOKS)].color, width=1, dash="dot")
        for place, curve in enumerate(found.curves)
    ]
    return figure


def _lines(
    found: BatchCurves, of: Callable[[VisionInferenceEstimate], float], unit: str, title: str
) -> Figure:
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": curve.software,
            "x": [one.estimate.batch for one in curve.points],
            "y": [rounded(of(one.estimate)) for one in curve.points],
            "line": {"color": LOOKS[place % len(LOOKS)].color, "dash": _DASHES[place % 4]},
            "marker": {"symbol": _SYMBOLS[place % 4], "size": 8},
            "hovertemplate": f"batch %{{x}}: %{{y:.4g}} {unit}<extra>{curve.software}</extra>",
        }
        for place, curve in enumerate(found.curves)
    ]
    layout = plot_layout("images in a batch", title)
    layout["xaxis"] |= {"type": "log", "dtick": _A_DOUBLING, "tickformat": "~g"}
    layout["yaxis"] |= {"type": "log", "dtick": "D2", "tickformat": ",~g"}
    return {"data": traces, "layout": layout}


def curve_table(found: BatchCurves) -> doc.DataTable:
    """Every point in figures."""
    columns = (
        doc.words("software"),
        doc.Column("batch", "batch"),
        doc.Column("latency_seconds", "latency"),
        doc.Column("images_per_second", "images/s"),
        doc.words("bound"),
        doc.words("verdict", "memory"),
        doc.words("in_time", "in time"),
    )
    rows = [
        (curve.software, one.estimate.batch, one.estimate.latency_seconds,
         one.estimate.images_per_second, one.estimate.bound, one.estimate.memory.verdict,
         None if one.in_time is None else "yes" if one.in_time else "late")
        for curve in found.curves
        for one in curve.points
    ]  # fmt: skip
    return doc.DataTable(columns, rows)
