"""What `ridgeline queue simulate` shows: policies side by side, and who waits when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ridgeline import quantity
from ridgeline.records.queue_simulation import (
    Bounds,
    GroupWaits,
    QueueSimulation,
    SimulatedQueue,
)
from ridgeline.report import document as doc
from ridgeline.report.plots import Figure, limit_line, plain_text, plot_layout, rounded

COLOURS = ("--accent", "--communication", "--good", "--data", "--optimizer", "--forward")
DASHES = ("solid", "dash", "dot")
"""So that more policies than colours can be told apart."""
NEXT_TO_NOTHING = 1e-6
SPOT_NOTE = "The same jobs on the same nodes, of which a share is spot capacity at its own price."
NOTE = (
    "Wait: from submission to the first start. Completion: from submission to the end. In brackets:"
    " 95 % of the redrawn traces. GPU use: work over what all GPUs could have done by the last end."
    " GPUs held: by jobs, of all, until the last job came."
)
FAIR_NOTE = (
    "Jain: how evenly queues (or sizes of jobs) are slowed, 1 at best. Unfair: jobs that ended"
    " later than in an equal part of the cluster of their own. Fragmented: idle GPUs that the"
    " typical job cannot use, of all, over time. Wasted: GPU-hours held beyond the work, among them"
    " those lost to work done twice and to starting again."
)


def queue_simulation_document(found: QueueSimulation) -> doc.ReportDocument:
    """The policies, the waits by size and queue, the timeline on a page."""
    shown: list[doc.Block] = [
        doc.Lead(found.trace or "jobs", _cluster(found), "Queue"),
        doc.Values(_headline(found)),
        doc.Chapter("Policies", [_policies(found)], NOTE),
        doc.Chapter("Fairness, waste and cost", [_fairness(found)], FAIR_NOTE),
        doc.Only("page", [doc.Chapter("The cluster over time", _lines_over_time(found))]),
        doc.Chapter("Mean wait by size of job", [_waits(found, sizes=True)]),
        doc.Only("page", doc.figure("sizes", _by_size(found), 320)),
    ]
    if found.mixes:
        shown.append(doc.Chapter("Spot capacity", [_mixes(found)], SPOT_NOTE))
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
    stuck = max(one.stuck_jobs for one in found.policies)
    if stuck:
        pairs.append(("wait for each other for good", quantity.count(stuck)))
    if found.left_out:
        pairs.append(("do not fit, left out", quantity.count(found.left_out)))
    if len(found.policies) > 1:
        pairs.append(("earliest completion", best.policy))
    pairs.append(("mean completion", _long(best.mean_completion_seconds)))
    return pairs


def _policies(found: QueueSimulation) -> doc.DataTable:
    columns = (
        doc.words("policy", ""),
        *doc.figures("wait mean", "wait P50", "wait P99", "completion"),
        doc.Column("P99", "completion P99", wide=True),
        doc.Column("use", "GPU use"),
        doc.Column("held", "GPUs held"),
    )
    rows = [
        (
            one.policy,
            _long(one.mean_wait_seconds) + _bounds(one.mean_wait_interval),
            _long(one.p50_wait_seconds),
            _long(one.p99_wait_seconds) + _bounds(one.p99_wait_interval),
            _long(one.mean_completion_seconds)
            + _bounds(one.intervals.get("mean_completion_seconds")),
            _long(one.p99_completion_seconds),
            quantity.percent(one.utilisation) + _percents(one.intervals.get("utilisation")),
            _held(one),
        )
        for one in found.policies
    ]
    return doc.DataTable(columns, rows)


def _held(one: SimulatedQueue) -> str | None:
    if one.held_until_last_submission is None:
        return None
    bounds = _percents(one.intervals.get("held_until_last_submission"))
    return quantity.percent(one.held_until_last_submission) + bounds


def _fairness(found: QueueSimulation) -> doc.DataTable:
    columns = (
        doc.words("policy", ""),
        *doc.figures("Jain", "unfair", "fragmented", "interrupted", "lost GPU-h", "wasted GPU-h"),
        doc.Column("cost_usd", "cost"),
    )
    rows = [
        (
            one.policy,
            quantity.digits(one.fairness),
            quantity.percent(one.unfairly_treated_share),
            None
            if one.fragmented_share is None
            else quantity.percent(one.fragmented_share, 1)
            + _percents(one.intervals.get("fragmented_share")),
            quantity.count(one.interruptions) if one.interruptions else None,
            quantity.digits(one.lost_gpu_hours) if one.interruptions else None,
            quantity.digits(one.wasted_gpu_hours) if one.wasted_gpu_hours > NEXT_TO_NOTHING
            else None,
            one.cost_usd,
        )
        for one in found.policies
    ]  # fmt: skip
    return doc.DataTable(columns, rows)


def _mixes(found: QueueSimulation) -> doc.DataTable:
    columns = (
        doc.words("policy", ""),
        doc.Column("spot", "spot nodes"),
        doc.Column("cost_usd", "cost"),
        *doc.figures("completion", "wait P99", "interrupted", "lost GPU-h"),
    )
    cheapest = min(found.mixes, key=lambda one: one.cost_usd)
    rows = [
        (
            one.policy,
            quantity.percent(one.spot_share) + (", cheapest" if one is cheapest else ""),
            one.cost_usd,
            _long(one.mean_completion_seconds),
            _long(one.p99_wait_seconds),
            quantity.count(one.interruptions),
            quantity.digits(one.lost_gpu_hours),
        )
        for one in found.mixes
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


def _percents(bounds: Bounds | None) -> str:
    if bounds is None:
        return ""
    return f" [{quantity.percent(bounds[0])}, {quantity.percent(bounds[1])}]"


AXES = {"waiting": "jobs that wait", "busy": "GPUs in use", "fragmented": "GPUs idle and unusable"}


def _lines_over_time(found: QueueSimulation) -> list[doc.Block]:
    shown = [*doc.figure("busy", _over_time(found, "busy"), 320),
             *doc.figure("waiting", _over_time(found, "waiting"), 320)]  # fmt: skip
    if found.policies[0].timeline.fragmented_gpus:
        shown += doc.figure("fragmented", _over_time(found, "fragmented"), 320)
    return shown


def _over_time(found: QueueSimulation, what: Literal["waiting", "busy", "fragmented"]) -> Figure:
    layout = plot_layout("days", AXES[what])
    layout["yaxis"]["rangemode"] = "tozero"
    if what == "busy":
        layout["shapes"] = [limit_line(y=found.gpus, width=1.5)]
    data = []
    for place, one in enumerate(found.policies):
        line = one.timeline
        values = {"waiting": line.waiting_jobs, "busy": line.busy_gpus,
                  "fragmented": line.fragmented_gpus}[what]  # fmt: skip
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": plain_text(one.policy),
                "x": [rounded((at + 0.5) * line.stretch_seconds / 86400.0)
                      for at in range(len(values))],
                "y": [rounded(value) for value in values],
                "line": {"color": COLOURS[place % len(COLOURS)], "width": 1.5,
                         "dash": DASHES[place // len(COLOURS) % len(DASHES)]},
                "hovertemplate": "day %{x:.2f}: %{y:.4g}",
            }
        )  # fmt: skip
    return {"data": data, "layout": layout}


def _by_size(found: QueueSimulation) -> Figure:
    layout = plot_layout("GPUs of a job", "hours of waiting, mean")
    layout["barmode"] = "group"
    layout["xaxis"]["type"] = "category"
    layout["yaxis"]["type"] = "log"
    layout["yaxis"]["dtick"] = 1
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
