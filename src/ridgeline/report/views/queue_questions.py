"""What `ridgeline queue simulate` shows of an autoscaler's settings, and of one more run."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.node_autoscaling import NodeAutoscaling, ScaledSetting
from ridgeline.records.queue_submission import DelayedJob, QueueSubmission
from ridgeline.report import document as doc

_SHOWN = 8


def autoscaling_document(found: NodeAutoscaling) -> doc.ReportDocument:
    """The cheapest setting, what it saves, and the next ones."""
    lead = f"nodes of {found.gpus_per_node} GPUs, {quantity.seconds(found.delay_seconds)} to come"
    pairs: list[tuple[str, doc.Words]] = [("jobs", quantity.count(found.jobs))]
    if found.objective_seconds is not None:
        pairs.append(("95 % wait at most", quantity.seconds(found.objective_seconds)))
    if found.best is None:
        pairs.append(("cheapest", "no setting meets it"))
    else:
        pairs.append(("cheapest", _setting(found.best)))
        if found.fixed.node_hours:
            saved = 1.0 - found.best.node_hours / found.fixed.node_hours
            pairs.append(("saved beside nodes that stay", quantity.percent(saved)))
    rows = [_row(one) for one in found.settings[:_SHOWN]]
    rows.append(_row(found.fixed))
    columns = (
        doc.words("setting"), *doc.figures("wait mean", "wait P95", "node-hours", "most nodes"),
        doc.Column("use", "GPU use"), doc.Column("cost_usd", "cost", wide=True),
        doc.words("meets"),
    )  # fmt: skip
    blocks: list[doc.Block] = [
        doc.Lead(found.trace, lead, "Autoscaling"),
        doc.Values(pairs),
        doc.Chapter("Settings", [doc.DataTable(columns, rows)]),
        doc.Lines(found.notes, "warning"),
    ]
    return doc.ReportDocument(f"Autoscaling for {found.trace}", blocks)


def _setting(one: ScaledSetting) -> str:
    idle = quantity.seconds(one.idle_seconds)
    return f"{one.min_nodes} to {one.max_nodes} nodes, idle {idle}"


def _row(one: ScaledSetting) -> tuple[doc.Cell, ...]:
    return (
        _setting(one),
        quantity.seconds(one.mean_wait_seconds),
        quantity.seconds(one.p95_wait_seconds),
        quantity.digits(one.node_hours),
        quantity.count(one.most_nodes),
        quantity.percent(one.utilisation),
        one.cost_usd,
        "yes" if one.meets else "no",
    )


def submission_document(found: QueueSubmission, recipe: str) -> doc.ReportDocument:
    """The run's own wait, and the others'."""
    columns = (
        doc.words("policy"),
        *doc.figures("it waits", "jobs later", "jobs earlier", "the others, each"),
    )
    rows = [
        (
            one.policy, quantity.seconds(one.wait_seconds), quantity.count(one.delayed_jobs),
            quantity.count(one.earlier_jobs), quantity.seconds(one.mean_change_seconds),
        )
        for one in found.policies
    ]  # fmt: skip
    blocks: list[doc.Block] = [
        doc.Lead(
            recipe,
            f"{found.num_gpus} GPUs for {quantity.seconds(found.duration_seconds)}, beside"
            f" {quantity.count(found.jobs)} jobs on {quantity.count(found.gpus)} GPUs",
            "One more run",
        ),
        doc.Chapter("Waiting", [doc.DataTable(columns, rows)]),
    ]
    for one in found.policies:
        if one.most_delayed:
            late = [
                f"{job.job} ({_held(job)}): {quantity.seconds(job.later_seconds)} later"
                for job in one.most_delayed
            ]
            blocks.append(doc.Chapter(f"Who waits longer under {one.policy}", [doc.Lines(late)]))
    return doc.ReportDocument(f"{recipe} beside {found.trace}", blocks)


def _held(job: DelayedJob) -> str:
    """The GPUs of a job, and its queue where it is in one."""
    gpus = f"{quantity.count(job.num_gpus)} GPU{'' if job.num_gpus == 1 else 's'}"
    return f"{gpus}, {job.queue}" if job.queue else gpus
