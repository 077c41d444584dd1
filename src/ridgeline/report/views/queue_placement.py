"""What `ridgeline queue place` shows: what rules of placement allocate, and what they leave."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.queue_placement import PlacedPoint, QueuePlacement
from ridgeline.report import document as doc
from ridgeline.report.plots import Figure, plain_text, plot_layout, rounded
from ridgeline.report.views.queue_simulation import COLOURS

NOTE = (
    "Tasks arrive and stay. Fragmented: GPUs that are left and that the next task cannot use, of"
    " all GPUs. Whole: nodes of the largest size with all GPUs free."
)


def queue_placement_document(found: QueuePlacement) -> doc.ReportDocument:
    """The rules at the end of the arrivals, and allocation by what had arrived."""
    best = max(found.policies, key=lambda one: one.points[-1].allocated_share)
    last = best.points[-1]
    cluster = f"{quantity.count(found.gpus)} GPUs on {quantity.count(found.nodes)} nodes"
    return doc.ReportDocument(
        f"Placement of {found.tasks}",
        [
            doc.Lead(found.tasks or "tasks", cluster, "Placement"),
            doc.Values(
                [
                    ("most allocated", best.policy),
                    ("of all GPUs", quantity.percent(last.allocated_share, 1)),
                    ("after demand for", quantity.percent(last.arrived_share)),
                    ("orders of arrival", quantity.count(found.seeds)),
                ]
            ),
            doc.Chapter("At the end", [_ends(found)], NOTE),
            doc.Chapter("Allocated, by demand so far", [_by_demand(found)]),
            *([doc.Lines(found.notes, "warning")] if found.notes else []),
            doc.Only("page", doc.figure("allocated", _figure(found, fragmented=False), 320)),
            doc.Only("page", doc.figure("fragmented", _figure(found, fragmented=True), 320)),
        ],
    )


def _ends(found: QueuePlacement) -> doc.DataTable:
    columns = (
        doc.words("rule", ""),
        *doc.figures("allocated", "least … most", "fragmented", "refused"),
        *doc.figures("partly used", "whole"),
    )
    rows = [
        (
            one.policy,
            quantity.percent(one.points[-1].allocated_share, 1),
            _range(one.points[-1]),
            quantity.percent(one.points[-1].fragmented_share, 1),
            quantity.count(one.refused_tasks),
            quantity.count(one.nodes_partly_used),
            quantity.count(one.large_nodes_free),
        )
        for one in found.policies
    ]
    return doc.DataTable(columns, rows)


def _range(point: PlacedPoint) -> str:
    low, high = point.allocated_share_least, point.allocated_share_most
    return f"{100 * low:.1f} … {quantity.percent(high, 1)}"


def _by_demand(found: QueuePlacement) -> doc.DataTable:
    points = [point for point in found.policies[0].points if point.arrived_share >= 0.595]
    columns = (
        doc.words("rule", ""),
        *doc.figures(*(quantity.percent(point.arrived_share) for point in points)),
    )
    rows = [
        (
            one.policy,
            *(quantity.percent(point.allocated_share, 1) for point in one.points[-len(points) :]),
        )
        for one in found.policies
    ]
    return doc.DataTable(columns, rows if points else [])


def _figure(found: QueuePlacement, *, fragmented: bool) -> Figure:
    layout = plot_layout("% of GPUs asked for", f"% of GPUs {_what(fragmented=fragmented)}")
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": plain_text(one.policy),
            "x": [rounded(100 * point.arrived_share) for point in one.points],
            "y": [
                rounded(100 * (point.fragmented_share if fragmented else point.allocated_share))
                for point in one.points
            ],
            "line": {"color": COLOURS[place % len(COLOURS)], "width": 1.5},
            "hovertemplate": "%{x:.0f} % asked for: %{y:.1f} %",
        }
        for place, one in enumerate(found.policies)
    ]
    return {"data": data, "layout": layout}


def _what(*, fragmented: bool) -> str:
    return "left and unusable" if fragmented else "allocated"
