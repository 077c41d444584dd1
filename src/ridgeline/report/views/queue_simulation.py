"""What `ridgeline queue simulate` shows: policies side by side, and who waits when."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline import quantity
from ridgeline.records.queue_simulation import (
    Bounds,
    GroupWaits,
    QueueSimulation,
    SimulatedQueue,
)
from ridgeline.report import document as doc
from ridgeline.report.figures import Figure, plain_text, plot_layout, rounded

COLOURS = ("--accent", "--forward", "--backward", "--optimizer", "--communication", "--data")
NOTE = (
    "Wait: from submission to the first start. Completion: from submission to the end. Fair: Jain's"
    " index of how much queues (or sizes of jobs) are slowed, 1 at best."
)


def queue_simulation_document(found: QueueSimulation) -> doc.ReportDocument:
    """The policies, the waits by size and queue, the timeline on a page."""
    shown: list[doc.Block] = [
        doc.Lead(found.trace or "jobs", _cluster(found), "Queue"),
        doc.Values(_headline(found)),
        doc.Chapter("Policies", [_policies(found)], NOTE),
        doc.Only("page", doc.figure("waiting", _over_time(found, waiting=True), 320)),
        doc.Only("page", doc.figure("busy", _over_time(found, waiting=False), 320)),
        doc.Chapter("Mean wait by size of job", [_waits(found, sizes=True)]),
        doc.Only("page", doc.figure("sizes", _by_size(found), 320)),
    ]
    if found.policies[0].by_queue:
        shown.append(doc.Chapter("Mean wait by queue", [_waits(found, sizes=False)]))
    if any(one.added for one in found.policies):
        shown.append(_added(found))
    shown.append(doc.Lines(found.notes, "warning"))
    return doc.ReportDocument(f"Queue of {found.trace}", shown)


def _cluster(found: QueueSimulation) -> str:
    gpus = f"{quantity.count(found.gpus)} GPUs"
    if not found.nodes:
        return f"{gpus}, one pool"
    return f"{gpus} on {quantity.count(found.nodes)} nodes, placement {found.placement}"


def _headline(found: QueueSimulation) -> list[tuple[str, doc.Words]]:
    best = min(found.policies, key=lambda one: one.mean_completion_seconds)
    pairs: list[tuple[str, doc.Words]] = [("jobs", quantity.count(found.jobs))]
    if found.left_out:
        pairs.append(("too large, left out", quantity.count(found.left_out)))
    if len(found.policies) > 1:
        pairs.append(("earliest completion", best.policy))
    pairs.append(("mean completion", _long(best.mean_completion_seconds)))
    return pairs


def _policies(found: QueueSimulation) -> doc.DataTable:
    columns = (
        doc.words("policy", ""),
        *doc.figures("wait mean", "wait P50", "wait P99", "completion"),
        doc.Column("use", "GPU use"),
        doc.Column("fair", "fair", wide=True),
        *doc.figures("interrupted", "lost GPU-h"),
        doc.Column("cost_usd", "cost", wide=True),
    )
    rows = [
        (
            one.policy,
            _long(one.mean_wait_seconds) + _bounds(one.mean_wait_interval),
            _long(one.p50_wait_seconds),
            _long(one.p99_wait_seconds) + _bounds(one.p99_wait_interval),
            _long(one.mean_completion_seconds),
            quantity.percent(one.utilisation),
            quantity.digits(one.fairness),
            quantity.count(one.interruptions) if one.interruptions else None,
            quantity.digits(one.lost_gpu_hours) if one.interruptions else None,
            one.cost_usd,
        )
        for one in found.policies
    ]
    return doc.DataTable(columns, rows)


def _waits(found: QueueSimulation, *, sizes: bool) -> doc.DataTable:
    groups = [_of(one, sizes=sizes) for one in found.policies]
    columns = (
        doc.words("group", "GPUs" if sizes else "queue"),
        doc.Column("jobs"),
        *doc.figures(*(one.policy for one in found.policies)),
    )
    rows = [
        (
            group.group,
            quantity.count(group.jobs),
            *(_long(of_policy[place].mean_wait_seconds) for of_policy in groups),
        )
        for place, group in enumerate(groups[0])
    ]
    return doc.DataTable(columns, rows)


def _of(one: SimulatedQueue, *, sizes: bool) -> list[GroupWaits]:
    return one.by_size if sizes else one.by_queue


def _added(found: QueueSimulation) -> doc.Chapter:
    asked = next(one.added for one in found.policies if one.added)
    title = (
        f"One more job of {quantity.count(asked.num_gpus)} GPUs for"
        f" {_long(asked.duration_seconds)}, submitted after {_long(asked.submit_seconds)}"
    )
    columns = (doc.words("policy", ""), *doc.figures("it waits", "the others, each"))
    rows = [
        (
            one.policy,
            _long(one.added.wait_seconds),
            _longer(one.added.others_mean_wait_change_seconds),
        )
        for one in found.policies
        if one.added
    ]
    return doc.Chapter(title, [doc.DataTable(columns, rows)])


def _longer(seconds: float) -> str:
    return ("+" if seconds >= 0 else "−") + _long(abs(seconds))


def _long(seconds: float) -> str:
    """Seconds as people say them of queues: minutes, hours, days."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{quantity.digits(seconds / size)} {unit}"
    return f"{quantity.digits(seconds)} s" if seconds else "0"


def _bounds(bounds: Bounds | None) -> str:
    return "" if bounds is None else f" [{_long(bounds[0])}, {_long(bounds[1])}]"


def _over_time(found: QueueSimulation, *, waiting: bool) -> Figure:
    layout = plot_layout("days", "jobs that wait" if waiting else "GPUs in use")
    layout["yaxis"]["rangemode"] = "tozero"
    if not waiting:
        layout["shapes"] = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": found.gpus, "y1": found.gpus,
             "line": {"color": "--limit", "width": 1.5, "dash": "dash"}}
        ]  # fmt: skip
    data = []
    for place, one in enumerate(found.policies):
        line = one.timeline
        values = line.waiting_jobs if waiting else line.busy_gpus
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": plain_text(one.policy),
                "x": [rounded((at + 0.5) * line.stretch_seconds / 86400.0)
                      for at in range(len(values))],
                "y": [rounded(value) for value in values],
                "line": {"color": COLOURS[place % len(COLOURS)], "width": 1.5},
                "hovertemplate": "day %{x:.2f}: %{y:.4g}",
            }
        )  # fmt: skip
    return {"data": data, "layout": layout}


def _by_size(found: QueueSimulation) -> Figure:
    layout = plot_layout("GPUs of a job", "hours of waiting, mean")
    layout["barmode"] = "group"
    layout["xaxis"]["type"] = "category"
    data = [
        {
            "type": "bar",
            "name": plain_text(one.policy),
            "x": [group.group for group in one.by_size],
            "y": _hours(one.by_size),
            "marker": {"color": COLOURS[place % len(COLOURS)]},
            "hovertemplate": "%{x} GPUs: %{y:.4g} h",
        }
        for place, one in enumerate(found.policies)
    ]
    return {"data": data, "layout": layout}


def _hours(groups: Sequence[GroupWaits]) -> list[float]:
    return [rounded(one.mean_wait_seconds / 3600.0) for one in groups]
