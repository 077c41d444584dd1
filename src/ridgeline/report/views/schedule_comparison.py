"""Pictures of pipeline schedules beside each other.

One step, block by block, is drawn by `planning_figures.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline.report import document as doc
from ridgeline.report.plots import LOOKS, Figure, bar_plot, bars

if TYPE_CHECKING:
    from ridgeline.cost.schedule_comparison import ScheduleComparison


def bubble_figure(found: ScheduleComparison) -> Figure:
    """Busy and idle time of a step under each schedule."""
    names = [one.schedule for one in found.schedules]
    idle = [1e3 * one.makespan_seconds * one.bubble_fraction for one in found.schedules]
    busy = [1e3 * one.makespan_seconds * (1 - one.bubble_fraction) for one in found.schedules]
    hover = "%{x:.4g} ms"
    traces = [
        bars(names, busy, name="working", color=LOOKS[1].color, hover=hover),
        bars(names, idle, name="bubble", color=LOOKS[11].color, pattern="/", hover=hover),
    ]
    return bar_plot(traces, "ms of a mean stage")


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
