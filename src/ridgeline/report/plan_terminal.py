"""A plan in the terminal: the best layout, why the others lose, what would change the answer."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from ridgeline import quantity
from ridgeline.records.plan import Bill, KnobValue, Launch, Plan, RunnerUp, WhatIf
from ridgeline.report.fitted_table import FittedTable
from ridgeline.report.planning_terminal import estimate_panel, pareto_table
from ridgeline.report.terms import layout_name, short_layout_name


def plan_view(plan: Plan) -> RenderableType:
    """What a plan says, for 80 columns and more; `launch_text` follows for each framework."""
    title = f"{plan.model} on {plan.cluster}, {plan.global_batch} x {plan.seq} tokens a step"
    parts: list[RenderableType] = [estimate_panel(plan.best.estimate, title)]
    searched = f"{plan.searched:,} layouts judged in {quantity.seconds(plan.seconds)}"
    parts.append(Text(f"{searched}; {plan.feasible:,} fit in memory.", style="dim"))
    if plan.bill is not None:
        parts += [Text(), _bill(plan.bill)]
    if plan.clusters:
        parts += [_heading("Clusters that meet the date"), _clusters(plan)]
    if plan.runners_up:
        parts += [_heading("Runners-up, and why they lose"), *_runners(plan.runners_up)]
    if plan.knobs:
        parts += [_heading("The best that is left with a knob held: times slower (–: none fits)")]
        parts.append(_knobs(plan.knobs))
    parts += [_heading("What would change the answer"), _what_ifs(plan.what_if)]
    if len(plan.pareto) > 1:
        parts += [_heading(_front_title(plan)), _front(plan)]
    if plan.launch:
        parts.append(_heading("To run it"))
    return Group(*parts)


def _heading(text: str) -> Group:
    return Group(Text(), Rule(text, align="left", style="dim"))


def _bill(bill: Bill) -> Text:
    parts = [f"{_tokens(bill.tokens)} tokens: {bill.days:.1f} days, {bill.steps:,} steps"]
    parts.append(f"{bill.device_hours:,.0f} device-hours")
    if bill.usd is not None:
        parts.append(f"${bill.usd:,.0f}")
    if bill.kilowatt_hours is not None:
        parts.append(f"{bill.kilowatt_hours / 1e3:,.1f} MWh")
    text = Text(" · ".join(parts), style="bold")
    text.append("\n" + "; ".join(bill.notes) + ".", style="not bold dim")
    return text


def _clusters(plan: Plan) -> FittedTable:
    table = FittedTable(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("cluster")
    for name in ("days", "$"):
        table.add_column(name, justify="right")
    for size in plan.clusters:
        style = "bold green" if size.cluster == plan.cluster else ""
        price = "–" if size.usd is None else f"{size.usd:,.0f}"
        table.add_row(size.cluster, f"{size.days:.1f}", price, style=style)
    return table


def _tokens(number: float) -> str:
    """A number of tokens as people say it: 300B, 2T."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= scale:
            return f"{number / scale:g}{letter}"
    return f"{number:g}"


def _runners(runners: Sequence[RunnerUp]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for runner in runners:
        line = Text(f"{runner.times_slower:.3f}x  ", style="bold")
        line.append(layout_name(runner.layout), style="cyan")
        parts.append(line)
        sentences = "\n".join(f"{sentence}." for sentence in runner.why)
        parts.append(Padding(Text(sentences, style="dim"), (0, 0, 0, 8)))
    return parts


def _knobs(values: Sequence[KnobValue]) -> FittedTable:
    table = FittedTable(box=None, show_header=False, padding=(0, 2, 0, 0))
    for knob in dict.fromkeys(value.knob for value in values):
        row = Text()
        for value in values:
            if value.knob == knob:
                slower = value.times_slower
                style = "bold green" if slower is not None and slower < 1.0005 else ""
                row.append(f"{value.value} ", style="dim")
                row.append("–   " if slower is None else f"{slower:.2f}   ", style=style)
        table.add_row(Text(knob), row)
    return table


def _what_ifs(answers: Sequence[WhatIf]) -> FittedTable:
    table = FittedTable(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("change")
    table.add_column("step", justify="right")
    table.add_column("times faster", justify="right")
    table.add_column("best layout then")
    for answer in answers:
        if answer.step_seconds is None or answer.layout is None or answer.times_faster is None:
            table.add_row(answer.change, "–", "–", "nothing fits")
            continue
        table.add_row(
            answer.change,
            quantity.seconds(answer.step_seconds),
            f"{answer.times_faster:.2f}",
            short_layout_name(answer.layout),
        )
    return table


def _over_sizes(plan: Plan) -> bool:
    """Whether the front is over sizes of the cluster, not over layouts of one."""
    return len({point.num_devices for point in plan.pareto}) > 1


def _front_title(plan: Plan) -> str:
    if _over_sizes(plan):
        return "Time against money, over the sizes of the cluster"
    return "Time against memory: nothing beats these in both"


def _front(plan: Plan) -> FittedTable:
    if not _over_sizes(plan):
        return pareto_table([point.estimate for point in plan.pareto])
    table = FittedTable(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name in ("devices", "step", "device-seconds a step", "$ a step"):
        table.add_column(name, justify="right")
    table.add_column("layout")
    for point in plan.pareto:
        price = "–" if point.usd_per_step is None else f"{point.usd_per_step:.3f}"
        table.add_row(
            str(point.num_devices),
            quantity.seconds(point.estimate.step_seconds),
            f"{point.device_seconds_per_step:,.0f}",
            price,
            short_layout_name(point.layout),
        )
    return table


def launch_text(launch: Launch) -> str:
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
