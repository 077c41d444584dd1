"""What a whole run costs with each technique on top, for the terminal, the page and the patch."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records import Ledger, RunBill
from ridgeline.report import wording

COLUMNS = ("optimisation", "multiplier", "cumulative", "mean step", "run", "cost")


def bill_title(bill: RunBill) -> str:
    """How long the run is and what an hour of it costs, with whose figures these are."""
    title = f"A run of {quantity.count(bill.steps)} steps ({bill.steps_from})"
    if bill.usd_per_hour is None:
        return f"{title}; {bill.price_from}"
    rate = quantity.usd(bill.usd_per_hour)
    if bill.price_from.startswith("--"):
        return f"{title} at {rate} an hour"
    return f"{title} at {rate} an hour: {bill.price_from}"


def bill_rows(ledger: Ledger, bill: RunBill) -> list[list[str]]:
    """The script as it stood, each technique on top of those above it, and the stack as proved.

    The last line is the direct measurement and not the product, so it may differ a little from
    the one above it.
    """
    rows = [_row("as it stood", None, None, bill.step_seconds, bill.run_seconds, bill.usd)]
    for row in ledger.final_rows:
        if row.run_seconds is not None:
            step = bill.step_seconds / row.cumulative
            name = wording.row_name(row)
            rows.append(_row(name, row.multiplier, row.cumulative, step, row.run_seconds, row.usd))
    if len(rows) > 1:
        rows.append(
            _row(
                "whole stack, measured",
                None,
                ledger.cumulative,
                bill.tuned_step_seconds,
                bill.tuned_run_seconds,
                bill.tuned_usd,
            )
        )
    return rows


def _row(
    name: str,
    multiplier: float | None,
    cumulative: float | None,
    step_seconds: float,
    run_seconds: float,
    usd: float | None,
) -> list[str]:
    return [
        name,
        "" if multiplier is None else quantity.ratio(multiplier),
        "" if cumulative is None else quantity.ratio(cumulative),
        quantity.seconds(step_seconds),
        quantity.hours(run_seconds),
        "–" if usd is None else quantity.usd(usd),
    ]


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
