"""What `ridgeline plan training` shows: the best layout, and why the others lose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.records.plan import Bill, KnobValue, Launch, Plan, RunnerUp
from ridgeline.report import document as doc
from ridgeline.report.views.layout_names import layout_name, short_layout_name
from ridgeline.report.views.planning_figures import pareto_members
from ridgeline.report.views.predict_training import estimate_document

if TYPE_CHECKING:
    from ridgeline.cost.pipeline_schedule import Timeline
    from ridgeline.cost.scaling import ScalingCurve
    from ridgeline.records.estimate import Estimate


def plan_document(
    plan: Plan, *, timeline: Timeline | None = None, scaling: Sequence[ScalingCurve] = ()
) -> doc.ReportDocument:
    """The best layout as `predict training` shows it, then what the search says of the others."""
    runners = plan.runners_up
    best = estimate_document(
        [plan.best.estimate, *(runner.estimate for runner in runners)],
        title=f"{plan.model} on {plan.cluster}",
        subtitle=f"{plan.global_batch} x {plan.seq} tokens a step; {plan.searched:,} layouts judged"
        f" in {quantity.seconds(plan.seconds)}, {plan.feasible:,} fit in memory",
        pareto=[point.estimate for point in plan.pareto],
        timeline=timeline,
        scaling=scaling,
    )
    shown = list(best.blocks)
    if plan.bill is not None:
        shown += _bill(plan.bill)
    if plan.clusters:
        shown.append(doc.Chapter("Clusters that meet the date", [_clusters(plan)]))
    if runners:
        shown.append(doc.Chapter("Runners-up, and why they lose", [doc.Lines(_runners(runners))]))
    if plan.knobs:
        note = "Times slower than the best; –: none fits."
        knobs = [knob_table(plan.knobs)]
        shown.append(doc.Chapter("The best that is left with a knob held", knobs, note))
    shown.append(doc.Chapter("What would change the answer", [_what_ifs(plan)]))
    if len(plan.pareto) > 1:
        shown.append(doc.Only("terminal", [_front(plan)]))
    if plan.launch:
        shown.append(doc.Chapter("To run it", [doc.Verbatim(_launch(one)) for one in plan.launch]))
    return doc.ReportDocument(best.title, shown)


def _bill(bill: Bill) -> list[doc.Block]:
    parts = [f"{_tokens(bill.tokens)} tokens: {bill.days:.1f} days, {bill.steps:,} steps"]
    parts.append(f"{bill.device_hours:,.0f} device-hours")
    if bill.usd is not None:
        parts.append(quantity.usd(bill.usd))
    if bill.kilowatt_hours is not None:
        parts.append(f"{bill.kilowatt_hours / 1e3:,.1f} MWh")
    notes = "; ".join(bill.notes) + "."
    return [doc.Paragraph(" · ".join(parts), "strong"), doc.Paragraph(notes, "dim")]


def _tokens(number: float) -> str:
    """A number of tokens as people say it: 300B, 2T."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= scale:
            return f"{number / scale:g}{letter}"
    return f"{number:g}"


def _clusters(plan: Plan) -> doc.DataTable:
    rows = [
        doc.TableRow((size.cluster, f"{size.days:.1f}", size.usd),
            "good" if size.cluster == plan.cluster else "")
        for size in plan.clusters
    ]  # fmt: skip
    return doc.DataTable(
        (doc.words("cluster"), doc.Column("days"), doc.Column("usd", "cost")), rows
    )


def _runners(runners: Sequence[RunnerUp]) -> list[doc.Words]:
    lines: list[doc.Words] = []
    for runner in runners:
        slower, name = f"{runner.times_slower:.3f}x  ", layout_name(runner.layout)
        lines.append((doc.Phrase(slower, "strong"), doc.Phrase(name, "accent")))
        lines += [doc.Phrase(f"        {sentence}.", "dim") for sentence in runner.why]
    return lines


def knob_table(values: Sequence[KnobValue]) -> doc.DataTable:
    """A row for each knob: its values, and how many times slower the best with each is."""
    rows: list[tuple[doc.Cell, ...]] = []
    for knob in dict.fromkeys(value.knob for value in values):
        line: list[doc.Phrase | str] = []
        for value in values:
            if value.knob == knob:
                slower = value.times_slower
                best = slower is not None and slower < 1.0005
                said = "–   " if slower is None else f"{slower:.2f}   "
                line += [
                    doc.Phrase(f"{value.value} ", "dim"),
                    doc.Phrase(said, "good" if best else ""),
                ]
        rows.append((knob, tuple(line)))
    return doc.DataTable((doc.words("knob", ""), doc.words("values", "")), rows)


def _what_ifs(plan: Plan) -> doc.DataTable:
    columns = (
        doc.words("change"),
        doc.Column("step_seconds", "step"),
        doc.Column("times faster"),
        doc.words("layout", "best layout then"),
    )
    rows = [
        (
            other.change,
            other.step_seconds,
            None if other.times_faster is None else f"{other.times_faster:.2f}",
            "nothing fits" if other.layout is None else short_layout_name(other.layout),
        )
        for other in plan.what_if
    ]
    return doc.DataTable(columns, rows)


def _front(plan: Plan) -> doc.Chapter:
    """The layouts that nothing beats in time and memory, or in time and money."""
    if len({point.num_devices for point in plan.pareto}) == 1:
        title = "Time against memory: nothing beats these in both"
        return doc.Chapter(title, [pareto_table([point.estimate for point in plan.pareto])])
    columns = (*doc.figures("devices"), doc.Column("step_seconds", "step"),
               *doc.figures("device-seconds a step", "$ a step"), doc.words("layout"))  # fmt: skip
    rows = [
        (
            str(point.num_devices),
            point.estimate.step_seconds,
            f"{point.device_seconds_per_step:,.0f}",
            None if point.usd_per_step is None else f"{point.usd_per_step:.3f}",
            short_layout_name(point.layout),
        )
        for point in plan.pareto
    ]
    title = "Time against money, over the sizes of the cluster"
    return doc.Chapter(title, [doc.DataTable(columns, rows)])


def pareto_table(estimates: Sequence[Estimate]) -> doc.DataTable:
    """What nothing beats in both speed and memory, fastest first."""
    front = sorted(pareto_members(estimates), key=lambda one: one.step_seconds)
    slowest = max(one.step_seconds for one in front)
    columns = (
        doc.words("layout", "Layout"),
        doc.words("bar", "step"),
        doc.Column("step_seconds", "time"),
        doc.Column("memory_bytes", "memory"),
        doc.Column("mfu_share", "MFU"),
    )
    rows = [
        (
            short_layout_name(one.layout),
            doc.Meter(one.step_seconds / slowest),
            one.step_seconds,
            one.memory.peak_bytes,
            one.mfu,
        )
        for one in front
    ]
    return doc.DataTable(columns, rows)


def _launch(launch: Launch) -> str:
    """What to type, never wrapped: it is there to be copied."""
    parts = [launch.framework]
    if launch.cannot:
        parts[0] += f": not with the best layout ({'; '.join(launch.cannot)})"
    if launch.command and launch.cannot:
        other = layout_name(launch.layout)
        parts.append(f"best that it can: {other}, {launch.times_slower:.3f}x")
    if launch.command:
        parts.append(launch.command)
    for name, content in launch.files.items():
        parts += [f"--- {name}", content.rstrip(), "---"]
    return "\n".join(parts) + "\n"
