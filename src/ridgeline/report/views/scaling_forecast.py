"""What `ridgeline predict scaling` shows: a run on more and more devices, and the ideal."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.scaling_forecast import ScalingForecast
from ridgeline.report import document as doc
from ridgeline.report.plots import Figure, line, plot_layout
from ridgeline.report.views.layout_names import plain_term
from ridgeline.report.views.predict_training import VERDICTS

HOUR = 3600.0
NOTE = (
    "Predicted time of the whole run, and what it would be if devices lost nothing by being more."
    " Diamonds are runs that others published, on the device named there."
)


def scaling_document(found: ScalingForecast) -> doc.ReportDocument:
    """Time, efficiency and money by number of devices."""
    first, last = found.points[0], found.points[-1]
    title = f"{found.model} on {found.device}"
    lead = doc.Lead(
        title=f"{quantity.seconds(last.run_seconds)} on {quantity.count(last.num_devices)}",
        subtitle=f"{quantity.scaled(found.amount, found.unit)},"
        f" {quantity.seconds(first.run_seconds)} on {quantity.count(first.num_devices)}",
        origin=doc.Phrase(title, "strong"),
        chip=doc.Phrase(f"{quantity.percent(last.efficiency)} efficient"),
    )
    page: list[doc.Block] = [
        doc.Chapter("Training time", doc.figure("time", time_figure(found), 420), NOTE),
        doc.Chapter("Efficiency", doc.figure("efficiency", efficiency_figure(found), 260)),
    ]
    shown: list[doc.Block] = [lead, doc.Only("page", page), point_table(found)]
    if found.published:
        shown.append(doc.Chapter("Published runs", [published_table(found)]))
    shown.append(doc.Chapter("Assumed, not measured or given", [doc.Lines(found.assumed)]))
    return doc.ReportDocument(title, shown)


def time_figure(found: ScalingForecast) -> Figure:
    """Predicted and ideal time over the number of devices, both on scales of powers."""
    counts = [point.num_devices for point in found.points]
    traces = [
        line(
            "ideal",
            counts,
            [point.ideal_seconds / HOUR for point in found.points],
            "--muted",
            "ideal on %{x}: %{y:.3g} h",
            dash="dot",
        ),
        line(
            "predicted",
            counts,
            [point.run_seconds / HOUR for point in found.points],
            "--accent",
            "%{text}",
            mode="lines+markers",
            width=3,
            text=[
                f"{quantity.count(point.num_devices)} devices:"
                f" {quantity.seconds(point.run_seconds)},"
                f" {quantity.percent(point.efficiency)} efficient"
                for point in found.points
            ],
            marker={
                "size": 9,
                "symbol": ["x" if point.verdict == "oom" else "circle" for point in found.points],
            },
        ),
    ]
    if found.published:
        traces.append(
            line(
                "published",
                [run.num_devices for run in found.published],
                [run.run_seconds / HOUR for run in found.published],
                "--term-4",
                "%{text}",
                mode="markers+text",
                text=[run.device for run in found.published],
                textposition="top right",
                marker={"size": 12, "symbol": "diamond", "color": "--term-4"},
            )
        )
    layout = plot_layout("devices", "hours")
    layout["xaxis"] |= {"type": "log", "tickvals": counts, "ticktext": _ticks(counts)}
    layout["yaxis"] |= {"type": "log", "dtick": 1, "tickformat": "~g"}
    return {"data": traces, "layout": layout}


def efficiency_figure(found: ScalingForecast) -> Figure:
    """What is left of the first point's time per device."""
    counts = [point.num_devices for point in found.points]
    bars = {
        "type": "bar",
        "x": _ticks(counts),
        "y": [round(100 * point.efficiency, 2) for point in found.points],
        "marker": {"color": "--accent"},
        "text": [quantity.percent(point.efficiency) for point in found.points],
        "hovertemplate": "%{x} devices: %{text}<extra></extra>",
        "showlegend": False,
    }
    layout = plot_layout("devices", "% of ideal")
    layout["xaxis"] |= {"type": "category"}
    layout["yaxis"] |= {"range": [0, 108]}
    return {"data": [bars], "layout": layout}


def _ticks(counts: list[int]) -> list[str]:
    return [quantity.count(count) for count in counts]


def point_table(found: ScalingForecast) -> doc.DataTable:
    """Every number of devices."""
    columns = (
        doc.Column("num_devices", "devices"),
        doc.Column("step_seconds", "step"),
        doc.Column("run_hours", "run"),
        doc.Column("ideal_hours", "ideal"),
        doc.Column("efficiency_share", "efficiency"),
        doc.Column("exposed_seconds", "waits for network", wide=True),
        doc.Column("usd", "cost"),
        doc.words("bottleneck", "lost to", wide=True),
        doc.words("verdict", ""),
    )
    rows = [
        (one.num_devices, one.step_seconds, one.run_seconds / HOUR, one.ideal_seconds / HOUR,
         one.efficiency, one.exposed_seconds, one.usd, plain_term(one.bottleneck),
         VERDICTS[one.verdict])
        for one in found.points
    ]  # fmt: skip
    return doc.DataTable(columns, rows)


def published_table(found: ScalingForecast) -> doc.DataTable:
    """What others published of this model."""
    columns = (
        doc.words("device"),
        doc.Column("num_devices", "devices"),
        doc.Column("run_hours", "run"),
        doc.Column("source", "source", "remark"),
    )
    rows = [
        (one.device, one.num_devices, one.run_seconds / HOUR, f"{one.source}\n{one.note}")
        for one in found.published
    ]
    return doc.DataTable(columns, rows)
