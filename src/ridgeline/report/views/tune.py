"""What `ridgeline tune` shows: the ledger, row by row, what the stack gained, what a run costs.

The same words stand above the patch of `tune --patch`.
"""

from __future__ import annotations

import math
from statistics import median

from ridgeline import quantity
from ridgeline.records import Ledger, LedgerRow
from ridgeline.records.ledger import NOT_BEGUN
from ridgeline.report import document as doc
from ridgeline.report import figures
from ridgeline.report.views.calls import outlier_blocks, paced_blocks
from ridgeline.report.views.doctor import (
    environment_section,
    files_statement,
    finding_section,
    machine,
    memory_section,
    origin,
    roofline_section,
    script_name,
)
from ridgeline.report.views.run_bill import (
    BILL_COLUMNS,
    bill_blocks,
    bill_result,
    bill_rows,
    bill_title,
    row_name,
)
from ridgeline.report.views.step_phases import phase_sections

SMALLEST_STARTUP_SECONDS = 1.0
"""A start that is later by less is not spoken of: starts differ by as much from run to run."""


_UNEVEN = 1.5
"""Mean over median from which a few long steps are most of the time, and the median misleads."""


def ledger_document(ledger: Ledger) -> doc.ReportDocument:
    """Everything that was tried, what survived, and what it gained."""
    runs = [("as it stood", ledger.baseline)]
    if ledger.tuned is not None:
        runs.append(("tuned", ledger.tuned))
    stack = ledger.final_rows
    shown: list[doc.Block] = [
        doc.Only("terminal", [doc.Paragraph(origin(ledger.baseline), "dim")]),
        doc.Only("page", _page_lead(ledger)),
    ]
    if stack:
        note = "Each technique was measured side by side with the stack above it."
        falls = doc.Chapter("From slow to fast", [doc.Waterfall(_falls(ledger))], note)
        shown.append(doc.Only("page", [falls]))
    if ledger.rows:
        note = "Kept only if the whole interval is above 1 and the result stays the same."
        shown.append(doc.Only("terminal", [ledger_table(ledger)]))
        shown.append(doc.Only("page", [doc.Chapter("Ledger", [ledger_table(ledger)], note)]))
    shown.append(doc.Only("terminal", _result(ledger)))
    called = [(one.name, one.closed, one.paced) for one in ledger.paced]
    shown += [*paced_blocks("script", called), *outlier_blocks("script", called)]
    if ledger.bill is not None:
        shown.append(doc.Chapter("What the whole run costs", bill_blocks(ledger, ledger.bill)))
    comparison = [*phase_sections(runs, ledger.samples), *roofline_section(runs)]
    shown.append(doc.Only("page", [*comparison, *memory_section(runs)]))
    if ledger.loss_check is not None:
        drawn = doc.figure("losses", figures.losses(ledger.loss_check))
        title = "Does it still train the same model?"
        shown.append(doc.Only("page", [doc.Chapter(title, drawn, ledger.loss_check.summary)]))
    written = {"stack": ledger.stack, "report": ledger.report, "patch": ledger.patch}
    pairs = [(name, path) for name, path in written.items() if path is not None]
    if pairs:
        shown.append(doc.Only("terminal", [doc.Values(pairs, listed=True)]))
    shown += [
        *files_statement(ledger.baseline),
        doc.Only("terminal", [doc.Lines(ledger.notes, "warning")]),
    ]
    found = finding_section("What was found before tuning", ledger.baseline, ledger.findings)
    shown.append(doc.Only("page", [found, environment_section(ledger.environment)]))
    return doc.ReportDocument(f"{script_name(ledger.environment)}: {claim(ledger)}", shown)


def ledger_table(ledger: Ledger) -> doc.DataTable:
    """The rows of a ledger, finished or growing; what did not survive is dimmed and says why."""
    said = [
        row
        for row in ledger.rows
        if _was_measured(row) and row.ci_high <= quantity.MOST_APART * row.ci_low
    ]
    bounds = [bound for row in said for bound in (row.ci_low, row.ci_high)]
    span = (min([*bounds, 1.0]), max([*bounds, 1.0]))
    columns = (
        doc.words("mark", ""),
        doc.words("technique", "Technique"),
        doc.Column("multiplier_ratio", "multiplier"),
        doc.Column("interval", "95 %"),
        doc.Column("whisker", "", only="page"),
        doc.Column("total_ratio", "total"),
        doc.Column("step_seconds", "step"),
        doc.Column("memory_bytes", "memory"),
        doc.Column("verification", "Verification", "remark"),
    )
    rows = [_ledger_row(row, ledger, span) for row in ledger.rows]
    return doc.DataTable(columns, rows, lead=2)


def _ledger_row(row: LedgerRow, ledger: Ledger, span: tuple[float, float]) -> doc.TableRow:
    in_stack = any(row is kept for kept in ledger.final_rows)
    remark = [_remark(row, in_stack=in_stack)]
    if in_stack:
        remark += [f"costs: {row.costs}" if row.costs else "", _break_even(row, ledger)]
    measured: tuple[doc.Cell, ...] = ("–", "", "", "", "", "")
    if _was_measured(row):
        measured = (
            doc.Phrase(quantity.ratio(row.multiplier), "strong" if in_stack else ""),
            _interval(row),
            doc.Whisker(row.ci_low, row.multiplier, row.ci_high, span),
            _row_total(ledger, row) if in_stack else "",
            _row_step(ledger, row, in_stack=in_stack),
            row.peak_memory_bytes or "–",
        )
    mark: doc.Words = doc.Phrase("✓", "good") if in_stack else "–"
    said = "\n".join(line for line in remark if line)
    given = (doc.Phrase(f" {_options(row)}", "dim"),) if row.options else ()
    return doc.TableRow((mark, (row_name(row), *given), *measured, said), "" if in_stack else "dim")


# -- words -----------------------------------------------------------------------------------------


def _options(row: LedgerRow) -> str:
    return " ".join(f"{name}={value}" for name, value in row.options.items())


def _was_measured(row: LedgerRow) -> bool:
    """Whether there are numbers behind a row; there are none for what did not apply."""
    return row.rounds > 0


def _remark(row: LedgerRow, *, in_stack: bool) -> str:
    """Why a row stands where it stands: its proof, or what spoke against it."""
    if in_stack:
        return row.verification
    if row.kept and row.stage == "add":
        return "dropped again when it was re-tried"
    return row.reason


def _break_even(row: LedgerRow, ledger: Ledger) -> str:
    """When a row's slower start has paid for itself; empty where nothing is to be said."""
    extra = row.startup_seconds
    if extra is None or extra < SMALLEST_STARTUP_SECONDS:
        return ""
    starts = f"starts {quantity.seconds(extra)} later"
    if row.pays_after_steps is None:
        return f"{starts}, which it never earns"
    steps = max(1, math.ceil(row.pays_after_steps))
    text = f"{starts}, pays after {quantity.count(steps)} step{'s' if steps > 1 else ''}"
    if ledger.bill is not None and ledger.bill.steps < steps:
        return f"{text}: not within this run of {quantity.count(ledger.bill.steps)}"
    return text


def proven(ledger: Ledger) -> str:
    """How the stack as a whole was proved, in a few words."""
    rows = ledger.final_rows
    if not rows:
        measured = any(_was_measured(row) for row in ledger.rows)
        hurried = any(reason.startswith(NOT_BEGUN) for reason in ledger.skipped.values())
        if not ledger.rows and hurried:
            return "no technique was measured: none could be in the time that was left"
        if not ledger.rows and ledger.complete and ledger.skipped:
            return (
                "no technique was measured: none fits this script and could gain a percent of it "
                "(why, one by one: `skipped` in ledger.json)"
            )
        return f"no technique {'survived measurement' if measured else 'was measured'}"
    if not ledger.complete:
        return "interrupted: proven so far"
    if ledger.loss_check is not None and not ledger.loss_check.passed:
        return "the stack as a whole failed its loss check"
    return "verified" if all(row.verified for row in rows) else "not verified"


def claim(ledger: Ledger) -> str:
    """What the stack as a whole gained, in the words that its number allows."""
    if not ledger.final_rows:
        return "No technique made it faster"
    word = "faster" if ledger.cumulative > 1 else "the speed"
    return f"{quantity.ratio(ledger.cumulative)} {word}"


def _ledger_steps(ledger: Ledger) -> tuple[float, float]:
    """The step of the script as it stood and with the stack: their quotient is the claim."""
    if ledger.step_seconds is not None:
        return ledger.step_seconds
    samples = ledger.samples
    if samples.get("baseline") and samples.get("tuned"):
        return median(samples["baseline"]), median(samples["tuned"])
    times = ledger.baseline.step_seconds
    before = times.mean if times.mean > _UNEVEN * times.p50 else times.p50
    return before, before / ledger.cumulative


def _row_total(ledger: Ledger, row: LedgerRow) -> float:
    """What the stack up to and including a row gains.

    The product of the rows; of the last row what was measured directly, all at once, because
    that is the same stack: the headline and the last total are one number.
    """
    stack = ledger.final_rows
    is_last = bool(stack) and row is stack[-1]
    return ledger.cumulative if is_last and ledger.step_seconds is not None else row.cumulative


def _row_step(ledger: Ledger, row: LedgerRow, *, in_stack: bool) -> float:
    """The step with a row applied, on the headline's clock.

    Each row was timed in an A/B run of its own, when the machine was faster or slower than in the
    one behind the headline. Ratios survive that, seconds do not: so the ratios are applied to the
    headline's step.
    """
    before, _ = _ledger_steps(ledger)
    if in_stack or row.stage == "leave-one-out":
        return before / _row_total(ledger, row)
    below = 1.0 if row.stage == "patch" else row.cumulative
    return before / (below * row.multiplier)


# -- the answer ------------------------------------------------------------------------------------


def _result(ledger: Ledger) -> list[doc.Block]:
    before, after = map(quantity.seconds, _ledger_steps(ledger))
    if not ledger.final_rows:
        times = ledger.baseline.step_seconds
        if ledger.step_seconds is None and times.mean > _UNEVEN * times.p50:
            before += f" (median {quantity.seconds(times.p50)})"
        return [doc.Paragraph((doc.Phrase(f"{before} per step: ", "strong"), proven(ledger)))]
    faster = doc.Phrase(claim(ledger), "good" if ledger.cumulative > 1 else "strong")
    rest = f" {quantity.interval(*ledger.cumulative_ci)}, {proven(ledger)}"
    shown: list[doc.Block] = [
        doc.Paragraph((doc.Phrase(f"{before} → {after} per step: ", "strong"), faster, rest))
    ]
    return [*shown, *_loss_statement(ledger)]


def _loss_statement(ledger: Ledger) -> list[doc.Block]:
    check = ledger.loss_check
    if check is None:
        return []
    return [doc.Paragraph(f"Loss: {check.summary}", "" if check.passed else "bad")]


def _page_lead(ledger: Ledger) -> list[doc.Block]:
    before, after = _ledger_steps(ledger)
    stacked = bool(ledger.final_rows)
    pairs: list[tuple[str, doc.Words]] = [("median step before", quantity.seconds(before))]
    if stacked:
        pairs.append(("median step tuned", quantity.seconds(after)))
    pairs.append(("peak memory before", quantity.memory(ledger.baseline.peak_memory_bytes)))
    if ledger.tuned is not None:
        pairs.append(("peak memory tuned", quantity.memory(ledger.tuned.peak_memory_bytes)))
        pairs.append(("of the limit, tuned", quantity.percent(ledger.tuned.limit_fraction)))
    good = stacked and ledger.complete and proven(ledger) == "verified"
    interval = quantity.interval(*ledger.cumulative_ci)
    lead = doc.Lead(
        title=claim(ledger),
        subtitle=f"95 % interval {interval}, measured side by side" if stacked else "",
        origin=origin(ledger.baseline),
        chip=doc.Phrase(proven(ledger), "good" if good else ""),
    )
    return [lead, doc.Values(pairs), doc.Lines(ledger.notes, "warning")]


def _falls(ledger: Ledger) -> list[doc.Fall]:
    """How each technique shortened the step; the last bar was measured against the first."""
    before, after = _ledger_steps(ledger)
    falls = [doc.Fall("as it stood", "", before, 0.0, quantity.seconds(before), total=True)]
    left = before
    for row in ledger.final_rows:
        start, left = left, left / row.multiplier
        label = quantity.ratio(row.multiplier)
        falls.append(doc.Fall(row.technique, _options(row), start, left, label))
    measured = "measured side by side"
    return [*falls, doc.Fall("tuned", measured, after, 0.0, quantity.seconds(after), total=True)]


# -- the lines above a patch -----------------------------------------------------------------------


def patch_header(ledger: Ledger) -> str:
    """What a patch gains and costs, as comments above its diff.

    `git apply` and `patch` skip everything before the first file's `---` line, so a patch may
    explain itself; every line begins with `#`, so that none of them looks like a diff to either.
    """
    environment = ledger.environment
    before, after = map(quantity.seconds, _ledger_steps(ledger))
    gained = f"{claim(ledger)} {quantity.interval(*ledger.cumulative_ci)}"
    lines = [
        f"{script_name(environment)}: {gained}, {proven(ledger)}; median step {before} → {after}",
        f"on {machine(environment)}, torch {environment.torch}, {environment.date}",
    ]
    patched = [row for row in ledger.rows if row.stage == "patch" and row.kept]
    lines += [f"as patched: {_gained(row)}" for row in patched]
    lines.append("")
    for row in ledger.final_rows:
        options = f" ({_options(row)})" if row.options else ""
        lines.append(f"{row_name(row)}{options}: {_gained(row)}")
        lines += [f"    costs: {row.costs}"] if row.costs else []
        earned = _break_even(row, ledger)
        lines += [f"    {earned}"] if earned else []
    if ledger.bill is not None:
        lines += ["", bill_title(ledger.bill), *_aligned(bill_rows(ledger, ledger.bill))]
        lines.append(bill_result(ledger.bill))
    lines.append("")
    return "".join(f"# {' '.join(line.splitlines())}".rstrip() + "\n" for line in lines)


def _gained(row: LedgerRow) -> str:
    return f"{quantity.ratio(row.multiplier)} {_interval(row)}, {row.verification}"


def _interval(row: LedgerRow) -> str:
    """The bounds of a row; one that was not bounded from above holds its own ratio there."""
    unbounded = row.ci_low <= 0 and row.ci_high <= row.multiplier
    return quantity.interval(row.ci_low, math.inf if unbounded else row.ci_high)


def _aligned(rows: list[tuple[doc.Cell, ...]]) -> list[str]:
    """Columns of equal width, the first to the left and figures to the right."""
    head = [column.heading for column in BILL_COLUMNS]
    table = [head]
    for row in rows:
        cells = zip(BILL_COLUMNS, row, strict=True)
        table.append([doc.plain(column.text(cell)) for column, cell in cells])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]
