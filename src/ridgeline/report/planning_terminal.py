"""A prediction or a plan in the terminal: the twins of the page's pictures, as rich renderables.

Pictures read without colours too. All are made for 80 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ridgeline import quantity
from ridgeline.cost.estimate_timeline import timeline_of
from ridgeline.records.estimate import Estimate, MemoryEstimate
from ridgeline.report.fitted_table import FittedTable
from ridgeline.report.planning_figures import pareto_members
from ridgeline.report.terms import Look, layout_name, looks, plain, rate_of, short_layout_name

if TYPE_CHECKING:
    from ridgeline.cost.pipeline_schedule import Timeline

_CELLS = {
    "forward": ("0123456789", "black on cyan"),
    "backward": ("ABCDEFGHIJ", "white on blue"),
    "input": ("ABCDEFGHIJ", "white on blue"),
    "weight": ("abcdefghij", "white on magenta"),
}
"""Kind of block → a sign for each micro-batch (by its last digit) and a style."""
VERDICT_STYLES = {"fits": "bold green", "tight": "bold yellow", "oom": "bold red"}
VERDICTS = {"fits": "fits", "tight": "tight", "oom": "OUT OF MEMORY"}
MOST_STAGES = 16
"""Of a picture by stage: the first, the last and the fullest of more are shown."""


def estimate_panel(estimate: Estimate, title: str = "") -> RenderableType:
    """One estimate: speed, where the step goes, memory, the pipeline, what was assumed."""
    low, high = estimate.interval
    head = Text()
    head.append(f"{quantity.seconds(estimate.step_seconds)} per step", style="bold")
    head.append(f"  80 % interval {quantity.seconds(low)} to {quantity.seconds(high)}", style="dim")
    rates = [
        rate_of(estimate),
        ("MFU", quantity.percent(estimate.mfu)),
        ("HFU", quantity.percent(estimate.hfu)),
        ("bottleneck", plain(estimate.bottleneck)),
    ]
    line = [Text.assemble((f"{name} ", "dim"), value) for name, value in rates]
    parts: list[RenderableType] = [
        head,
        Text(layout_name(estimate.layout), style="cyan"),
        Columns(line, padding=(0, 3)),
        Text(f"FLOPs: {estimate.flops_convention}", style="dim"),
        Text(),
        step_bars(estimate),
        Text(),
        memory_bars(estimate.memory),
    ]
    timeline = timeline_of(estimate)
    if timeline is not None and timeline.num_stages <= MOST_STAGES:
        parts += [Text(), TimelineView(timeline)]
    if estimate.assumed:
        parts += [Text(), Text("Assumed:", style="dim")]
        parts += [Text(f"- {line}", style="dim") for line in estimate.assumed]
    return Panel(Group(*parts), title=title or None, title_align="left")


def step_bars(estimate: Estimate) -> FittedTable:
    """Exposed seconds by term, longest first."""
    terms = sorted(estimate.breakdown.items(), key=lambda item: -item[1])
    chosen = looks(name for name, size in estimate.breakdown.items() if size)
    longest = max((size for _, size in terms), default=1.0) or 1.0
    grid = _grid("Step", "", "time", "share")
    for name, size in terms:
        if not size:
            continue
        look = chosen[name]
        bar = Text(look.fill * max(1, round(24 * size / longest)), style=look.terminal)
        share = quantity.percent(size / estimate.step_seconds)
        grid.add_row(Text(plain(name)), bar, quantity.seconds(size), share)
    return grid


def memory_bars(memory: MemoryEstimate) -> Group:
    """One bar per stage up to the capacity (`|`); what is past it does not fit."""
    verdict = Text("Memory ", style="bold")
    verdict.append(f"{quantity.memory(memory.peak_bytes)} of the fullest device's")
    verdict.append(f" {quantity.memory(memory.capacity_bytes)}: ")
    verdict.append(VERDICTS[memory.verdict], style=VERDICT_STYLES[memory.verdict])
    sized = (item for stage in memory.stages for item in stage.terms.items())
    terms = list(dict.fromkeys(name for name, size in sized if size))
    chosen = looks(terms)
    scale = max(memory.capacity_bytes, memory.peak_bytes)
    mark = round(46 * memory.capacity_bytes / scale)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    for index in _shown_stages(memory):
        stage = memory.stages[index]
        bar = _memory_bar(stage.terms, chosen, scale)
        bar.pad_right(max(0, mark - len(bar)))
        marked = Text.assemble(bar[:mark], ("|", "bold red"), bar[mark:])
        grid.add_row(f"stage {stage.stage}", marked, quantity.memory(stage.total_bytes))
    fullest = max(memory.stages, key=lambda stage: stage.total_bytes)
    legend = [
        Text.assemble((f"{chosen[name].fill} ", chosen[name].terminal), plain(name), " ", size)
        for name in terms
        for size in [quantity.memory(fullest.terms.get(name, 0.0))]
        if fullest.terms.get(name, 0.0)
    ]
    return Group(verdict, grid, Columns(legend, padding=(0, 3)))


def _shown_stages(memory: MemoryEstimate) -> list[int]:
    count = len(memory.stages)
    if count <= MOST_STAGES:
        return list(range(count))
    fullest = max(range(count), key=lambda index: memory.stages[index].total_bytes)
    return sorted({0, 1, fullest, count - 2, count - 1})


def _memory_bar(terms: dict[str, float], chosen: dict[str, Look], scale: float) -> Text:
    bar, done = Text(), 0.0
    for name, size in terms.items():
        if not size:
            continue
        start, done = round(46 * done / scale), done + size
        bar.append(chosen[name].fill * (round(46 * done / scale) - start), chosen[name].terminal)
    return bar


def pareto_table(estimates: Sequence[Estimate]) -> FittedTable:
    """What nothing beats in both speed and memory, fastest first."""
    front = sorted(pareto_members(estimates), key=lambda one: one.step_seconds)
    slowest = max(one.step_seconds for one in front)
    grid = _grid("Layout", "step", "time", "memory", "MFU")
    grid.columns[1].justify = "left"
    for one in front:
        grid.add_row(
            Text(short_layout_name(one.layout)),
            Text("█" * max(1, round(24 * one.step_seconds / slowest)), style="cyan"),
            quantity.seconds(one.step_seconds),
            quantity.memory(one.memory.peak_bytes),
            quantity.percent(one.mfu),
        )
    return grid


@dataclass(frozen=True, slots=True)
class TimelineView:
    """A pipeline step as wide as the terminal: one line per stage, `·` is idle.

    A cell shows what the stage does in the middle of it: the micro-batch, as a digit for its
    forward, a capital (A is 0) for its backward, a small letter for the weight half of it.
    """

    timeline: Timeline

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        timeline = self.timeline
        margin = len(f"stage {timeline.num_stages - 1} ")
        width = max(20, options.max_width - margin)
        title = Text("Pipeline ", style="bold")
        title.append(
            f"{timeline.schedule}, {timeline.num_microbatches} micro-batches:"
            f" {quantity.seconds(timeline.makespan_seconds)},"
            f" {quantity.percent(timeline.bubble_fraction)} idle"
        )
        yield title
        for rank in range(timeline.num_stages):
            label = Text(f"stage {rank}".ljust(margin), style="dim", no_wrap=True)
            yield Text.assemble(label, self._line(rank, width))
        legend = Text()
        for kind in ("forward", "backward"):
            signs, style = _CELLS[kind]
            legend.append(signs[0], style).append(f" {kind}  ")
        if any(block.kind == "weight" for block in timeline.blocks[0]):
            legend.append("a", _CELLS["weight"][1]).append(" weight half  ")
        yield legend.append("· idle")

    def _line(self, rank: int, width: int) -> Text:
        line, stage, place = Text(no_wrap=True), self.timeline.blocks[rank], 0
        for column in range(width):
            moment = (column + 0.5) / width * self.timeline.makespan_seconds
            while place < len(stage) and stage[place].end_seconds <= moment:
                place += 1
            if place == len(stage) or stage[place].start_seconds > moment:
                line.append("·", style="dim")
            else:
                signs, style = _CELLS[stage[place].kind]
                line.append(signs[stage[place].microbatch % 10], style=style)
        return line


def _grid(*names: str) -> FittedTable:
    table = FittedTable(
        box=None,
        show_header=True,
        header_style="dim",
        pad_edge=False,
        padding=(0, 2, 0, 0),
        collapse_padding=True,
    )
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place < 2 else "right", no_wrap=True)
    return table
