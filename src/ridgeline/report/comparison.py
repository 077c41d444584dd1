"""What `ridgeline compare` shows: a terminal view, and the same as Markdown for a CI comment."""

from __future__ import annotations

import html
import re

from rich.console import Group, RenderableType
from rich.text import Text

from ridgeline import quantity
from ridgeline.measure.comparison import Comparison, PhaseChange, Side, Slowdown
from ridgeline.measure.history import HistoryPoint, HistoryVerdict
from ridgeline.report.fitted_table import FittedTable

STYLES = {"slower": "bold red", "faster": "bold green", "no difference": "bold"}


def headline(comparison: Comparison) -> str:
    """The answer in one line, e.g. `1.23× slower [1.20, 1.26]`."""
    change = comparison.slowdown
    if comparison.metric is not None and comparison.metric_slowdown is not None:
        return _by_metric(comparison, comparison.metric, comparison.metric_slowdown)
    if comparison.verdict == "slower" and comparison.decided_by == "mean":
        change = comparison.mean_slowdown
        return f"{_factor(change)} slower on average {_bounds(change)}: long steps grew"
    if comparison.verdict == "slower":
        return f"{_factor(change)} slower {_bounds(change)}"
    if comparison.verdict == "faster":
        return f"{_factor(change)} faster {_bounds(change)}"
    return f"no difference beyond noise and {quantity.percent(comparison.threshold)}"


def _by_metric(comparison: Comparison, metric: str, change: Slowdown) -> str:
    if comparison.verdict == "no difference":
        allowed = quantity.percent(comparison.threshold)
        return f"no difference of {metric} beyond noise and {allowed}: {_new_over_old(change)}"
    word = comparison.verdict
    if "/" in metric:
        word = "more" if word == "slower" else "less"
    return f"{_factor(change)} {word} {_bounds(change)} at {metric}"


def _new_over_old(change: Slowdown) -> str:
    low, high = change.ci_low, change.ci_high
    bounds = "[–, –]" if low is None or high is None else quantity.interval(low, high)
    return f"{quantity.ratio(change.ratio)} {bounds}"


def reason(comparison: Comparison) -> str | None:
    """Which phase made it slower, None where none did."""
    for phase in comparison.phases:
        if phase.name == comparison.slower_phase:
            grown = quantity.seconds(phase.difference_seconds)
            return f"{phase.name} takes {grown} more per {comparison.new.unit}"
    return None


def history_headline(history: HistoryVerdict) -> str:
    """What the history says, in one line."""
    entries = "1 entry" if history.entries == 1 else f"{history.entries} entries"
    if history.verdict == "too few entries":
        return f"{entries}: too few to see a change"
    if history.first_bad is None:
        return f"{entries}: the newest level is as good as the best"
    return (
        f"{entries}: {quantity.ratio(history.slowdown)} slower than the best level "
        f"since {_named(history, history.first_bad)}"
    )


def comparison_view(comparison: Comparison, history: HistoryVerdict | None) -> RenderableType:
    """The comparison as a terminal shows it."""
    parts: list[RenderableType] = [
        Text(headline(comparison), style=STYLES[comparison.verdict]),
    ]
    cause = reason(comparison)
    if cause is not None:
        parts.append(Text(cause))
    parts += [Text(), _table(["", "reference", "new", "new / reference"], _metric_rows(comparison))]
    phases = _phase_rows(comparison)
    if phases:
        header = ["mean by phase", "reference", "new", "difference"]
        parts += [Text(), _table(header, phases)]
    if history is not None:
        style = "bold red" if history.first_bad is not None else ""
        parts += [Text(), Text(f"History, {history_headline(history)}", style=style)]
        parts += [Text(line, style="dim") for line in _change_lines(history)]
    warnings = _all_warnings(comparison, history)
    if warnings:
        parts += [Text(), *(Text(f"warning: {warning}", style="yellow") for warning in warnings)]
    return Group(*parts)


def comparison_markdown(comparison: Comparison, history: HistoryVerdict | None) -> str:
    """The comparison as GitHub-flavoured Markdown."""
    lines = [f"### Ridgeline: {headline(comparison)}", ""]
    cause = reason(comparison)
    if cause is not None:
        lines += [f"{_escaped(cause)}.", ""]
    header = ["", "reference", "new", "new / reference"]
    lines += [*_markdown_table(header, _metric_rows(comparison)), ""]
    phases = _phase_rows(comparison)
    if phases:
        lines += ["<details><summary>Phases (mean)</summary>", ""]
        lines += _markdown_table(["phase", "reference", "new", "difference"], phases)
        lines += ["", "</details>", ""]
    if history is not None:
        lines += [f"**History**, {_escaped(history_headline(history))}.", ""]
        lines += [f"- {_escaped(line)}" for line in _change_lines(history)]
        lines += [""] if history.changes else []
    for warning in _all_warnings(comparison, history):
        lines.append(f"> **Warning:** {_escaped(warning)}  ")
    return "\n".join(lines).rstrip() + "\n"


def _all_warnings(comparison: Comparison, history: HistoryVerdict | None) -> list[str]:
    return comparison.warnings + (history.warnings if history is not None else [])


def _factor(change: Slowdown) -> str:
    """Always above one: the word beside it says which way."""
    return quantity.ratio(change.ratio if change.ratio >= 1 else 1 / change.ratio)


def _bounds(change: Slowdown) -> str:
    if change.ci_low is None or change.ci_high is None:
        return quantity.interval(0.0, float("inf"))
    if change.ratio >= 1:
        return quantity.interval(change.ci_low, change.ci_high)
    return quantity.interval(1 / change.ci_high, 1 / change.ci_low)


def _metric_rows(comparison: Comparison) -> list[list[str]]:
    before, after = comparison.reference, comparison.new
    rows = [
        ["file", before.source, after.source, ""],
        [f"{after.unit}s", *_steps(before, after), ""],
    ]
    for name, field, judged in (
        (f"median {after.unit}", "p50", comparison.slowdown),
        (f"mean {after.unit}", "mean", comparison.mean_slowdown),
        (f"p95 {after.unit}", "p95", None),
        (f"p99 {after.unit}", "p99", None),
    ):
        old, now = getattr(before.step_seconds, field), getattr(after.step_seconds, field)
        ratio = quantity.ratio(now / old)
        change = comparison.metric_slowdown if comparison.metric == field else judged
        rows.append(
            [
                name,
                quantity.seconds(old),
                quantity.seconds(now),
                ratio if change is None else _new_over_old(change),
            ]
        )
    rows.append(_tail_row(comparison))
    if comparison.peak_memory_ratio is not None:
        sizes = [quantity.memory(side.peak_memory_bytes) for side in (before, after)]
        rows.append(["peak memory", *sizes, quantity.ratio(comparison.peak_memory_ratio)])
    return rows


def _tail_row(comparison: Comparison) -> list[str]:
    """How much longer the slowest in a hundred is than the middle one."""
    sides = (comparison.reference.step_seconds, comparison.new.step_seconds)
    old, now = (side.p99 / side.p50 for side in sides)
    asked = comparison.metric_slowdown if comparison.metric == "p99/p50" else None
    ratio = quantity.ratio(now / old) if asked is None else _new_over_old(asked)
    return ["p99 / p50", quantity.ratio(old), quantity.ratio(now), ratio]


def _steps(before: Side, after: Side) -> tuple[str, str]:
    return quantity.count(before.steps), quantity.count(after.steps)


def _phase_rows(comparison: Comparison) -> list[list[str]]:
    return [_phase_row(phase) for phase in comparison.phases if _took_time(phase)]


def _took_time(phase: PhaseChange) -> bool:
    return phase.reference_seconds > 0 or phase.new_seconds > 0


def _phase_row(phase: PhaseChange) -> list[str]:
    sign = "+" if phase.difference_seconds > 0 else ""
    return [
        phase.name,
        quantity.seconds(phase.reference_seconds),
        quantity.seconds(phase.new_seconds),
        sign + quantity.seconds(phase.difference_seconds),
    ]


def _change_lines(history: HistoryVerdict) -> list[str]:
    return [
        f"{change.kind} at {_named(history, change.at)}: "
        f"{quantity.seconds(change.from_seconds)} → {quantity.seconds(change.to_seconds)}"
        for change in history.changes
    ]


def _named(history: HistoryVerdict, point: HistoryPoint) -> str:
    date = f", {point.date}" if point.date else ""
    return f"{history.file}:{point.line} ({point.source}{date})"


def _table(header: list[str], rows: list[list[str]]) -> FittedTable:
    table = FittedTable(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _markdown_table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    return lines + ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]


def _escaped(text: str) -> str:
    """File names and commands are the user's: nothing in them may act as Markdown or HTML."""
    one_line = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_\[\]|~#@!])", r"\\\1", one_line)
