"""Pictures of pipeline schedules beside each other.

One step, block by block, is drawn by `planning_figures.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.report import document as doc
from ridgeline.report.figures import Figure, plot_layout, rounded
from ridgeline.report.looks import LOOKS

if TYPE_CHECKING:
    from ridgeline.cost.schedule_comparison import ScheduleComparison


def bubble_figure(found: ScheduleComparison) -> Figure:
    """Busy and idle time of a step under each schedule."""
    names = [one.schedule for one in found.schedules]
    idle = [1e3 * one.makespan_seconds * one.bubble_fraction for one in found.schedules]
    busy = [1e3 * one.makespan_seconds * (1 - one.bubble_fraction) for one in found.schedules]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": [rounded(value) for value in values],
            "marker": {"color": color, "pattern": {"shape": pattern}},
            "hovertemplate": "%{x:.4g} ms<extra>" + name + "</extra>",
        }
        for name, values, color, pattern in (
            ("working", busy, LOOKS[1].color, ""),
            ("bubble", idle, LOOKS[11].color, "/"),
        )
    ]
    layout = plot_layout("ms of a mean stage", "")
    layout["barmode"] = "stack"
    layout["yaxis"] |= {"autorange": "reversed", "type": "category"}
    return {"data": traces, "layout": layout}


def schedule_table(found: ScheduleComparison) -> doc.DataTable:
    """Every schedule in figures."""
    columns = (
        doc.words("schedule"),
        doc.Column("num_chunks", "chunks"),
        doc.Column("makespan_seconds", "step"),
        doc.Column("bubble_fraction", "bubble"),
        doc.Column("peak_live_microbatches", "micro-batches held"),
    )
    rows = [
        (doc.Phrase(one.schedule, "strong" if one.schedule == found.timeline.schedule else ""),
         one.num_chunks, one.makespan_seconds, one.bubble_fraction, one.peak_live_microbatches)
        for one in found.schedules
    ]  # fmt: skip
    return doc.DataTable(columns, rows)
