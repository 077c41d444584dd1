"""A ledger of `ridgeline tune` with rows of its stack left out, in time, memory and money.

With every row in, the answer is the one that was measured side by side. With one left out it is an
estimate: the product of what the others gained, each on top of the rows above it, and the sum of
what each of them changed in the peak of memory. Cures that touch the same time share their gain, so
only a measurement makes it a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline.cost.money import run_cost
from ridgeline.cost.product_interval import product_interval
from ridgeline.errors import InputError
from ridgeline.records.ledger import Ledger, LedgerRow
from ridgeline.records.stack_forecast import ForecastRow, StackForecast, StackPoint
from ridgeline.records.store import read_record

CURE = "give a finished ledger of ridgeline tune"


def stack_rows(path: Path) -> list[str]:
    """Names of the rows in a ledger's stack, in their order."""
    return [row.technique for row in _read(path).final_rows]


def forecast_stack(
    path: Path,
    *,
    without: Sequence[str] = (),
    steps_to_train: float | None = None,
    usd_per_hour: float | None = None,
) -> StackForecast:
    """What the run takes with the stack, and with rows left out.

    Args:
        path: The ledger.
        without: Techniques to leave out.
        steps_to_train: Steps of the whole run; by default what the ledger was told.
        usd_per_hour: Price of the machines; by default what the ledger was told.

    Raises:
        InputError: The file is no ledger with a stack, or has no such row.
    """
    ledger = _read(path)
    kept = ledger.final_rows
    names = [row.technique for row in kept]
    if not names:
        raise InputError(f"{path}: no row of it was kept, so there is nothing to switch; {CURE}")
    for name in without:
        if name not in names:
            raise InputError(f"--without {name}: no such row there; it has {', '.join(names)}")
    bill = ledger.bill
    run = _Run(
        ledger=ledger,
        steps=bill.steps if bill and steps_to_train is None else steps_to_train,
        usd_per_hour=bill.usd_per_hour if bill and usd_per_hour is None else usd_per_hour,
    )
    applied = [row for row in kept if row.technique not in without]
    rows = [
        ForecastRow(
            technique=row.technique,
            applied=row in applied,
            multiplier=row.multiplier,
            interval=(row.ci_low, row.ci_high),
            point=run.point([one for one in kept[: place + 1] if one in applied], kept),
        )
        for place, row in enumerate(kept)
    ]
    whole = len(applied) == len(kept)
    stack = {name for row in kept for name in row.members}
    return StackForecast(
        script=ledger.environment.command,
        machine=ledger.environment.device,
        start=run.point([], kept),
        rows=rows,
        final=run.measured(kept) if whole else rows[-1].point,
        measured=whole,
        largest=max(applied, key=lambda row: row.multiplier).technique if applied else "",
        steps=run.steps,
        usd_per_hour=run.usd_per_hour,
        not_kept=[
            row.technique
            for row in ledger.rows
            if row.stage == "add" and not set(row.members) <= stack
        ],
    )


class _Run:
    """The run of a ledger, at the pace of any of its stacks."""

    def __init__(self, *, ledger: Ledger, steps: float | None, usd_per_hour: float | None) -> None:
        for name, value in (("--steps-to-train", steps), ("--usd-per-hour", usd_per_hour)):
            if value is not None and not 0.0 < value < 1e15:
                raise InputError(f"{name} {value:g}: give a number above 0")
        self._ledger = ledger
        self.steps = steps
        self.usd_per_hour = usd_per_hour
        profile = ledger.baseline.step_seconds
        self._median = ledger.step_seconds[0] if ledger.step_seconds else profile.p50
        self._mean = ledger.bill.step_seconds if ledger.bill else profile.mean

    def point(self, applied: Sequence[LedgerRow], kept: Sequence[LedgerRow]) -> StackPoint:
        """The run with these rows of the stack, from what each of them gained."""
        factors = [row.multiplier for row in applied]
        interval = product_interval(factors, [(row.ci_low, row.ci_high) for row in applied])
        cumulative = 1.0
        for factor in factors:
            cumulative *= factor
        return self._at(cumulative, interval, self._peak(applied, kept))

    def measured(self, kept: Sequence[LedgerRow]) -> StackPoint:
        """The run with the whole stack, as it was measured beside the script as it stood."""
        ledger = self._ledger
        return self._at(ledger.cumulative, ledger.cumulative_ci, self._peak(kept, kept))

    def _peak(self, applied: Sequence[LedgerRow], kept: Sequence[LedgerRow]) -> float:
        """The script's own peak of memory, and what each applied row changed in it."""
        peak = before = float(self._ledger.baseline.peak_memory_bytes)
        for row in kept:
            if row in applied:
                peak += row.peak_memory_bytes - before
            before = row.peak_memory_bytes
        return max(peak, 0.0)

    def _at(self, cumulative: float, interval: tuple[float, float], peak: float) -> StackPoint:
        cost = None
        if self.steps is not None:
            cost = run_cost(self.steps, self._mean, self.usd_per_hour, cumulative)
        return StackPoint(
            cumulative=cumulative,
            interval=interval,
            step_seconds=self._median / cumulative,
            peak_memory_bytes=peak,
            run_seconds=cost.run_seconds if cost else None,
            usd=cost.usd if cost else None,
        )


def _read(path: Path) -> Ledger:
    """The ledger, if its numbers can be of one."""
    ledger = read_record(path, Ledger)
    paces = [ledger.baseline.step_seconds.p50, ledger.baseline.step_seconds.mean]
    paces += [*(ledger.step_seconds or ()), *([ledger.bill.step_seconds] if ledger.bill else [])]
    spans = [(row.ci_low, row.multiplier, row.ci_high) for row in ledger.final_rows]
    spans.append((ledger.cumulative_ci[0], ledger.cumulative, ledger.cumulative_ci[1]))
    if not all(0.0 < pace < 1e9 for pace in paces) or not all(
        1e-9 < low <= middle <= high < 1e9 for low, middle, high in spans
    ):
        raise InputError(f"{path}: its steps and intervals are no measured ones; {CURE}")
    return ledger
