"""The parts of the HTML page, each a function from records to markup."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ridgeline import quantity
from ridgeline.records import Environment, Finding, Ledger, LedgerRow, RunBill, StepProfile
from ridgeline.report import wording
from ridgeline.report.bars import Fall, Part, legend, stacked, waterfall, whisker
from ridgeline.report.markup import Markup, element, joined, table
from ridgeline.report.run_bill import COLUMNS, bill_result, bill_rows

OPERATORS = 12
Runs = Sequence[tuple[str, StepProfile]]
"""Labelled profiles that are shown beside each other, the newest last."""


def section(title: str, note: str, *children: str) -> Markup:
    """A titled card."""
    head = [element("h2", title)] + ([element("p", note, class_="note")] if note else [])
    return element("section", *head, *children)


def plot(identifier: str, height: int = 340) -> Markup:
    """The place that the page's script draws a figure into."""
    message = element("noscript", "This plot needs JavaScript.")
    style = f"min-height:{height}px"
    return element("div", message, class_="plot", id=identifier, style=style)


def tiles(facts: Sequence[tuple[str, str]]) -> Markup:
    """Numbers to read first."""
    return element(
        "dl",
        *(element("div", element("dt", label), element("dd", value)) for label, value in facts),
        class_="tiles",
    )


def step_waterfall(ledger: Ledger) -> Markup:
    """How each technique shortened the step; the last bar was measured against the first."""
    before, after = wording.ledger_steps(ledger)
    falls = [
        Fall(
            name="as it stood",
            remark="",
            start=before,
            end=0.0,
            label=quantity.seconds(before),
            total=True,
        )
    ]
    left = before
    for row in wording.stack_rows(ledger):
        start, left = left, left / row.multiplier
        falls.append(
            Fall(
                name=row.technique,
                remark=wording.options(row),
                start=start,
                end=left,
                label=quantity.ratio(row.multiplier),
            )
        )
    falls.append(
        Fall(
            name="tuned",
            remark="measured side by side",
            start=after,
            end=0.0,
            label=quantity.seconds(after),
            total=True,
        )
    )
    return waterfall(falls)


def ledger_table(ledger: Ledger) -> Markup:
    """Everything that was tried, with its interval; what did not survive is dimmed."""
    bounds = [
        bound
        for row in ledger.rows
        if wording.was_measured(row)
        for bound in (row.ci_low, row.ci_high)
    ]
    finite = [bound for bound in bounds if math.isfinite(bound)]
    span = (min([*finite, 1.0]), max([*finite, 1.0]))
    stack = wording.stack_rows(ledger)
    names = ["", "technique", "multiplier", "95 % interval", "", "cumulative", "step", "memory"]
    head = element("tr", *(element("th", name) for name in [*names, "verification"]))
    rows = [
        _ledger_row(row, ledger, any(row is kept for kept in stack), span) for row in ledger.rows
    ]
    inner = element("table", element("thead", head), element("tbody", *rows), class_="ledger")
    return element("div", inner, class_="scroll")


def _ledger_row(
    row: LedgerRow, ledger: Ledger, in_stack: bool, span: tuple[float, float]
) -> Markup:
    measured = wording.was_measured(row)
    remark = wording.remark(row, in_stack=in_stack)
    step = wording.row_step(ledger, row, in_stack=in_stack) if measured else 0.0
    cells = [
        element("td", "✓" if in_stack else "–", class_="mark"),
        element("td", element("b", wording.row_name(row)), element("small", wording.options(row))),
        element("td", quantity.ratio(row.multiplier) if measured else "–", class_="number strong"),
        element(
            "td", quantity.interval(row.ci_low, row.ci_high) if measured else "", class_="number"
        ),
        element("td", whisker(row.ci_low, row.multiplier, row.ci_high, span) if measured else ""),
        element(
            "td",
            quantity.ratio(wording.row_total(ledger, row)) if in_stack else "",
            class_="number",
        ),
        element("td", quantity.seconds(step) if measured else "", class_="number"),
        element("td", quantity.memory(row.peak_memory_bytes) if measured else "", class_="number"),
        element("td", remark, _costs(row, ledger, in_stack), class_="words"),
    ]
    return element("tr", *cells, class_="kept" if in_stack else "rejected")


def _costs(row: LedgerRow, ledger: Ledger, in_stack: bool) -> Markup:
    if not in_stack:
        return Markup("")
    said = [f"costs: {row.costs}" if row.costs else "", wording.break_even(row, ledger)]
    return joined([element("small", text) for text in said if text])


def run_bill(ledger: Ledger, bill: RunBill) -> list[Markup]:
    """What the whole run costs, technique by technique."""
    parts = [table(list(COLUMNS), bill_rows(ledger, bill), text_columns=1)]
    if ledger.final_rows:
        parts.append(element("p", element("b", bill_result(bill))))
    return parts


def phase_bars(runs: Runs) -> Markup:
    """The mean step by phase, one bar per run on one scale."""
    scale = max(sum(phase.mean for phase in run.phases.values()) for _, run in runs) or 1.0
    bars = []
    for label, run in runs:
        parts = [
            Part(
                name=name, size=run.phases[name].mean, label=quantity.seconds(run.phases[name].mean)
            )
            for name, _ in wording.phases(run)
        ]
        mean = sum(part.size for part in parts)
        bars.append(stacked(label, quantity.seconds(mean), parts, scale))
    return joined([*bars, _phase_legend(runs)])


def _phase_legend(runs: Runs) -> Markup:
    seen = {name for _, run in runs for name, _ in wording.phases(run)}
    names = [name for name in runs[0][1].phases if name in seen]
    if len(runs) == 1:
        (_, run), columns = runs[0], ["share", "mean", "p50", "p95", "p99"]
        shares = dict(wording.phases(run))
        return legend(
            columns,
            [
                (
                    name,
                    [
                        quantity.percent(shares[name]),
                        *(
                            quantity.seconds(getattr(run.phases[name], column))
                            for column in columns[1:]
                        ),
                    ],
                )
                for name in names
            ],
        )
    cells = [
        (name, [quantity.seconds(run.phases[name].mean) for _, run in runs if name in run.phases])
        for name in names
    ]
    return legend([label for label, _ in runs], cells)


def memory_bars(runs: Runs) -> Markup:
    """What the bytes at the peak were for, one bar per run on one scale."""
    parts = [(label, run, wording.memory_parts(run)) for label, run in runs]
    scale = max(sum(size for _, size in split) for _, _, split in parts)
    if not scale:
        return Markup("")
    bars = [
        stacked(
            label,
            quantity.memory(run.peak_memory_bytes),
            [Part(name=kind, size=size, label=quantity.memory(size)) for kind, size in split],
            scale,
        )
        for label, run, split in parts
    ]
    rows = [
        (kind, [quantity.memory(dict(split).get(kind, 0)) for _, _, split in parts])
        for kind in wording.MEMORY_KINDS
    ]
    return joined([*bars, legend([label for label, _ in runs], rows)])


def operator_table(profile: StepProfile) -> Markup:
    """The most expensive operators, beside their own limits."""
    step = profile.step_seconds.mean or 1.0
    rows = []
    for operator in profile.operators[:OPERATORS]:
        seconds = operator.seconds or math.inf
        attained = quantity.scaled(operator.flops / seconds, "FLOP/s")
        if not operator.flops:
            attained = quantity.scaled(operator.bytes / seconds, "B/s")
        rows.append(
            [
                joined([element("b", operator.name), element("small", operator.shapes)]),
                operator.phase,
                operator.bound,
                quantity.percent(operator.seconds / step),
                quantity.seconds(operator.seconds),
                quantity.count(operator.calls),
                quantity.digits(operator.flops / operator.bytes if operator.bytes else 0.0),
                attained,
                quantity.percent(operator.limit_seconds / seconds),
            ]
        )
    names = ["operator", "phase", "bound", "share", "time", "calls", "FLOP/byte", "attained"]
    return table([*names, "of limit"], rows, text_columns=3, class_="operators")


def findings(profile: StepProfile, found: Sequence[Finding]) -> Markup:
    """What to do, most worthwhile first; or that there is nothing worth doing."""
    if not found:
        return element("p", wording.clean_statement(profile), class_="clean")
    return element("ol", *(_finding(finding) for finding in found), class_="findings")


def _finding(finding: Finding) -> Markup:
    facts = [
        element("span", f"{label} ", element("b", value))
        for label, value in wording.evidence(finding)
    ]
    places = [element("code", place) for place in finding.where]
    name = f"{finding.cause}, {quantity.percent(finding.share)} of the step"
    if finding.technique is not None:
        name += f"; ridgeline tune tries {finding.technique}"
    return element(
        "li",
        element(
            "div",
            element("b", wording.gain(finding)),
            element("span", f"expected, {wording.confidence(finding)}"),
            class_="worth",
        ),
        element(
            "div",
            element("h3", finding.summary),
            element("p", finding.cure),
            element("p", *places, class_="places") if places else "",
            element("p", *facts, class_="facts") if facts else "",
            element("p", name, class_="note"),
        ),
    )


def places_table(profile: StepProfile) -> Markup | None:
    """Lines of the script that wait, break graphs, or are hot."""
    rows = [
        [
            str(point.site),
            f"waits: {point.kind}",
            quantity.count(point.calls),
            quantity.seconds(point.seconds),
        ]
        for point in profile.sync_points
    ]
    rows += [
        [str(broken.site or ""), f"graph break: {broken.reason}", quantity.count(broken.count), ""]
        for broken in profile.graph_breaks
    ]
    rows += [
        [str(line.site), f"in {line.phase}: {line.leaf}", quantity.percent(line.share), ""]
        for line in profile.hot_lines
    ]
    if not rows:
        return None
    return table(["line", "what happens there", "per step", "time"], rows, text_columns=2)


def environment(facts: Environment) -> Markup:
    """The machine, the versions and the command behind the numbers."""
    pairs = [
        ("command", " ".join(facts.command)),
        ("folder", facts.cwd),
        ("date", facts.date),
        ("device", facts.device),
        ("host CPU", f"{facts.host_cpu}, {facts.cpu_count} CPUs"),
        ("versions", f"Python {facts.python}, torch {facts.torch}, ridgeline {facts.ridgeline}"),
        *facts.variables.items(),
    ]
    rows = [element("div", element("dt", name), element("dd", value)) for name, value in pairs]
    return element("dl", *rows, class_="environment")


def remarks(texts: Sequence[str]) -> Markup:
    """Warnings and notes, where there are any."""
    if not texts:
        return Markup("")
    return element("ul", *(element("li", text) for text in texts), class_="warnings")
