"""What a whole run costs, technique by technique, as `ridgeline tune` shows it."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records import Ledger, LedgerRow, RunBill
from ridgeline.report import document as doc

BILL_COLUMNS = (
    doc.words("optimisation"),
    doc.Column("multiplier_ratio", "multiplier"),
    doc.Column("cumulative_ratio", "cumulative"),
    doc.Column("step_seconds", "mean step"),
    doc.Column("run_hours", "run"),
    doc.Column("usd", "cost"),
)


def row_name(row: LedgerRow) -> str:
    """The technique, and whether it was tried again after it had been kept."""
    return row.technique + (", re-tried" if row.stage == "leave-one-out" else "")


def bill_blocks(ledger: Ledger, bill: RunBill) -> list[doc.Block]:
    """The cost of a whole run, technique by technique."""
    result = [doc.Paragraph(bill_result(bill), "good")] if ledger.final_rows else []
    return [
        doc.Paragraph(bill_title(bill)),
        doc.DataTable(BILL_COLUMNS, bill_rows(ledger, bill)),
        *result,
    ]


def bill_title(bill: RunBill) -> str:
    """How long the run is and what an hour of it costs, with whose figures these are."""
    title = f"A run of {quantity.count(bill.steps)} steps ({bill.steps_from})"
    if bill.usd_per_hour is None:
        return f"{title}; {bill.price_from}"
    rate = quantity.usd(bill.usd_per_hour)
    if bill.price_from.startswith("--"):
        return f"{title} at {rate} an hour"
    return f"{title} at {rate} an hour: {bill.price_from}"


def bill_rows(ledger: Ledger, bill: RunBill) -> list[tuple[doc.Cell, ...]]:
    """The script as it stood, each technique on top of those above it, and the stack as proved.

    The last line is the direct measurement and not the product, so it may differ a little from
    the one above it.
    """
    rows: list[tuple[doc.Cell, ...]] = [
        ("as it stood", "", "", bill.step_seconds, bill.run_seconds / 3600, bill.usd)
    ]
    for row in ledger.final_rows:
        if row.run_seconds is not None:
            step = bill.step_seconds / row.cumulative
            hours = row.run_seconds / 3600
            rows.append((row_name(row), row.multiplier, row.cumulative, step, hours, row.usd))
    if len(rows) > 1:
        tuned = (bill.tuned_step_seconds, bill.tuned_run_seconds / 3600, bill.tuned_usd)
        rows.append(("whole stack, measured", "", ledger.cumulative, *tuned))
    return rows


def bill_result(bill: RunBill) -> str:
    """What the stack saves, with the interval of what is left to pay."""
    low, high = bill.tuned_run_seconds_ci or (None, None)
    if bill.usd is None or bill.tuned_usd is None or bill.usd_per_hour is None:
        text = f"{quantity.hours(bill.run_seconds)} → {quantity.hours(bill.tuned_run_seconds)}"
        if low is None or high is None:
            return text
        return f"{text} [{quantity.hours(low)}, {quantity.hours(high)}]"
    text = f"{quantity.usd(bill.usd)} → {quantity.usd(bill.tuned_usd)}"
    if low is None or high is None:
        return text
    bounds = [quantity.usd(seconds / 3600 * bill.usd_per_hour) for seconds in (low, high)]
    return f"{text} [{', '.join(bounds)}]"
