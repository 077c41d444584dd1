"""What `ridgeline doctor` and `ridgeline tune` show in a terminal, as rich renderables.

Everything that came from the user's script travels as `Text`, never as markup, so a bracket in a
file name stays a bracket. Both views are made for 80 columns and use more where there are more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.bar import Bar
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ridgeline import quantity
from ridgeline.records import (
    Finding,
    Ledger,
    LedgerRow,
    Operator,
    RunBill,
    StepProfile,
    Verdict,
)
from ridgeline.report import wording
from ridgeline.report.fitted_table import FittedTable
from ridgeline.report.run_bill import COLUMNS, bill_result, bill_rows, bill_title

WIDE = 110
"""Columns from which a table shows what a narrow one folds away."""
OPERATORS = 8
PLACES = 3
PLACE_WIDTH = 60
"""Of a place in a finding's column at 80 columns: the line number is never broken off."""
PHASE_COLORS = {
    "data": "yellow",
    "copy": "bright_yellow",
    "forward": "cyan",
    "backward": "blue",
    "optimizer": "magenta",
    "communication": "red",
    "other": "bright_black",
}
MEMORY_FILLS = {
    "weights": ("cyan", "█"),
    "gradients": ("blue", "▓"),
    "optimizer": ("magenta", "▒"),
    "activations": ("yellow", "░"),
    "other": ("bright_black", "·"),
}
"""Colour and fill: the picture must also read without colours."""


def profile_view(
    profile: StepProfile, findings: Sequence[Finding], verdict: Verdict
) -> RenderableType:
    """The doctor's answer: verdict, phases, memory, operators, and what to do, in that order."""
    blank = Text()
    parts: list[RenderableType] = [
        _origin(profile),
        blank,
        _headline(profile, findings, verdict),
        blank,
        _phase_table(profile),
    ]
    if profile.peak_memory_bytes:
        parts += [blank, _memory_lines(profile)]
    if profile.operators:
        parts += [blank, _OperatorTable(profile)]
    for warning in _profile_warnings(profile):
        parts += [blank, Text(warning, style="yellow")]
    files = wording.files_statement(profile)
    if files is not None:
        parts += [blank, Text(files, style="dim")]
    parts.append(blank)
    if findings:
        parts.append(Text("What to do, most worthwhile first", style="bold"))
        for number, finding in enumerate(findings, start=1):
            parts += [blank, _finding_block(number, finding)]
    else:
        parts.append(Text(wording.clean_statement(profile), style="bold green"))
    return Group(*parts)


def ledger_view(ledger: Ledger) -> RenderableType:
    """The ledger of a tune: one line per technique tried, and what the stack gained in all."""
    parts: list[RenderableType] = [_origin(ledger.baseline), Text()]
    if ledger.rows:
        parts += [ledger_table(ledger), Text()]
    parts.append(_ledger_result(ledger))
    if ledger.loss_check is not None:
        style = "" if ledger.loss_check.passed else "bold red"
        parts.append(Text(f"Loss: {ledger.loss_check.summary}", style=style))
    if ledger.bill is not None:
        parts += [Text(), _bill(ledger, ledger.bill)]
    files = [("stack", ledger.stack), ("report", ledger.report), ("patch", ledger.patch)]
    written = Table.grid(padding=(0, 2))
    for name, path in files:
        if path is not None:
            written.add_row(Text(name, style="dim"), Text(path, overflow="fold"))
    if written.row_count:
        parts += [Text(), written]
    kept = wording.files_statement(ledger.baseline)
    if kept is not None:
        parts += [Text(), Text(kept, style="dim")]
    parts += [Text(note, style="yellow") for note in ledger.notes]
    return Group(*parts)


def ledger_table(ledger: Ledger) -> RenderableType:
    """The rows of a ledger, finished or growing."""
    return _LedgerTable(ledger)


def _origin(profile: StepProfile) -> Text:
    environment = profile.environment
    text = Text()
    text.append(wording.script_name(environment), style="bold")
    text.append(f" on {wording.machine(environment)}, torch {environment.torch}\n", style="dim")
    text.append(wording.measured(profile), style="dim")
    return text


def _headline(profile: StepProfile, findings: Sequence[Finding], verdict: Verdict) -> Group:
    color = "green" if not findings else "bold yellow"
    title = Text()
    title.append(verdict.value, style=f"bold {color}")
    title.append(f"{wording.few_steps(profile)}: {wording.MEANING[verdict]}")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=30)
    grid.add_column(no_wrap=True)
    limit = min(1.0, max(0.0, profile.limit_fraction))
    bar = Bar(1.0, 0.0, limit, width=30, color="green", bgcolor="bright_black")
    grid.add_row(bar, Text(wording.limit_statement(profile), style="bold"))
    rates = [Text.assemble((f"{name} ", "dim"), value) for name, value in wording.rates(profile)]
    return Group(title, grid, Text(), Columns(rates, padding=(0, 3)))


def _phase_table(profile: StepProfile) -> FittedTable:
    table = _table()
    table.add_column("Phase")
    table.add_column("")
    for name in ("Share", "mean", "p50", "p95"):
        table.add_column(name, justify="right", no_wrap=True)
    shares = wording.phases(profile)
    longest = max((share for _, share in shares), default=1.0)
    for name, share in shares:
        phase = profile.phases[name]
        table.add_row(
            name,
            Bar(longest, 0.0, share, width=24, color=PHASE_COLORS.get(name, "white")),
            quantity.percent(share),
            quantity.seconds(phase.mean),
            quantity.seconds(phase.p50),
            quantity.seconds(phase.p95),
        )
    return table


def _memory_lines(profile: StepProfile) -> Group:
    parts = wording.memory_parts(profile)
    total = sum(size for _, size in parts)
    peak = quantity.memory(profile.peak_memory_bytes)
    title = Text.assemble(("Memory at the peak ", "bold"), peak)
    if not total:
        return Group(title)
    line, legend = Text(), []
    done = 0
    for kind, size in parts:
        color, fill = MEMORY_FILLS[kind]
        start, done = round(60 * done / total), done + size
        line.append(fill * (round(60 * done / total) - start), style=color)
        legend.append(Text.assemble((f"{fill} ", color), f"{kind} {quantity.memory(size)}"))
    return Group(title, line, Columns(legend, padding=(0, 3)))


@dataclass(frozen=True, slots=True)
class _OperatorTable:
    """The most expensive operators beside their place on the roofline."""

    profile: StepProfile

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= WIDE
        table = _table()
        table.add_column("Top operators")
        if wide:
            table.add_column("shapes")
            table.add_column("phase", no_wrap=True)
        for name in ("share", "time", "FLOP/byte", "attained", "of limit"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("bound", no_wrap=True)
        for operator in self.profile.operators[:OPERATORS]:
            cells = [_short(operator.name)]
            if wide:
                cells += [_short(operator.shapes), Text(operator.phase)]
            table.add_row(*cells, *_operator_numbers(operator, self.profile.step_seconds.mean))
        yield table


def _operator_numbers(operator: Operator, step_seconds: float) -> list[str]:
    seconds = operator.seconds
    attained = "–"
    if operator.flops and seconds:
        attained = quantity.scaled(operator.flops / seconds, "FLOP/s")
    elif operator.bytes and seconds:
        attained = quantity.scaled(operator.bytes / seconds, "B/s")
    intensity = operator.flops / operator.bytes if operator.bytes else 0.0
    return [
        quantity.percent(seconds / step_seconds) if step_seconds else "–",
        quantity.seconds(seconds),
        quantity.digits(intensity),
        attained,
        quantity.percent(operator.limit_seconds / seconds) if seconds else "–",
        operator.bound,
    ]


def _short(text: str) -> Text:
    """A cell that gives way first: cut with an ellipsis, never wrapped."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _profile_warnings(profile: StepProfile) -> Iterable[str]:
    if profile.non_finite:
        yield f"{profile.non_finite} steps had a loss or gradients that were not finite"
    yield from profile.warnings


def _finding_block(number: int, finding: Finding) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=2, justify="right", no_wrap=True)
    grid.add_column(width=11, no_wrap=True)
    grid.add_column(ratio=1)
    worth = Text(wording.gain(finding), style="bold green")
    worth.append(f"\n{wording.confidence(finding)}", style="dim")
    body = Text(finding.summary, style="bold")
    body.append("\n" + finding.cure, style="not bold")
    if finding.where:
        for place in finding.where[:PLACES]:
            body.append("\n" + wording.place(place, PLACE_WIDTH), style="not bold cyan")
    facts = " · ".join(f"{label} {value}" for label, value in wording.evidence(finding))
    if facts:
        body.append("\n" + facts, style="not bold dim")
    name = f"{finding.cause}, {quantity.percent(finding.share)} of the step"
    if finding.technique is not None:
        name += f"; ridgeline tune tries {finding.technique}"
    body.append("\n" + name, style="not bold dim")
    grid.add_row(Text(str(number), style="dim"), worth, body)
    return grid


@dataclass(frozen=True, slots=True)
class _LedgerTable:
    """The rows of a ledger; what did not survive is dimmed and says why."""

    ledger: Ledger

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= WIDE
        stack = wording.stack_rows(self.ledger)
        table = _table(lead=2)
        table.add_column("")
        table.add_column("Technique", ratio=None if wide else 1)
        total = "cumulative" if wide else "total"
        for name in ("multiplier", "95 %", total, "step", "memory"):
            table.add_column(name, justify="right", no_wrap=True)
        if wide:
            table.add_column("Verification", ratio=1)
        for row in self.ledger.rows:
            in_stack = any(row is kept for kept in stack)
            cells = _ledger_cells(row, self.ledger, in_stack=in_stack, wide=wide)
            table.add_row(*cells, style="" if in_stack else "dim")
        yield table


def _ledger_cells(
    row: LedgerRow, ledger: Ledger, *, in_stack: bool, wide: bool
) -> list[RenderableType]:
    name = Text(wording.row_name(row))
    remark = Text(wording.remark(row, in_stack=in_stack))
    if in_stack and row.costs:
        remark.append(f"\ncosts: {row.costs}")
    earned = wording.break_even(row, ledger) if in_stack else ""
    if earned:
        remark.append(f"\n{earned}")
    if wide:
        name.append(f" {wording.options(row)}" if row.options else "", style="dim")
    measured = wording.was_measured(row)
    cells: list[RenderableType] = [
        Text("✓", style="bold green") if in_stack else Text("–"),
        name if wide else Group(name, Padding(Text(remark.plain, style="dim"), (0, 0, 0, 1))),
        Text(quantity.ratio(row.multiplier) if measured else "–", style="bold" if in_stack else ""),
        quantity.interval(row.ci_low, row.ci_high) if measured else "",
        quantity.ratio(wording.row_total(ledger, row)) if in_stack else "",
        quantity.seconds(wording.row_step(ledger, row, in_stack=in_stack)) if measured else "",
        quantity.memory(row.peak_memory_bytes) if measured else "",
    ]
    return [*cells, remark] if wide else cells


def _ledger_result(ledger: Ledger) -> Text:
    before, after = wording.ledger_steps(ledger)
    text = Text()
    if not wording.stack_rows(ledger):
        text.append(f"{quantity.seconds(before)} per step: ", style="bold")
        text.append(wording.proven(ledger))
        return text
    text.append(f"{quantity.seconds(before)} → {quantity.seconds(after)} per step: ", style="bold")
    text.append(wording.claim(ledger), style="bold green" if ledger.cumulative > 1 else "bold")
    text.append(f" {quantity.interval(*ledger.cumulative_ci)}, {wording.proven(ledger)}")
    return text


def _bill(ledger: Ledger, bill: RunBill) -> Group:
    table = _table()
    for place, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if place else "left", no_wrap=place > 0)
    for row in bill_rows(ledger, bill):
        table.add_row(*(Text(cell) for cell in row))
    parts: list[RenderableType] = [Text(bill_title(bill), style="bold"), table]
    if ledger.final_rows:
        parts.append(Text(bill_result(bill), style="bold green"))
    return Group(*parts)


def _table(lead: int = 1) -> FittedTable:
    return FittedTable(
        lead=lead,
        box=None,
        show_header=True,
        header_style="dim",
        pad_edge=False,
        padding=(0, 2, 0, 0),
        collapse_padding=True,
    )
