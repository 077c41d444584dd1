"""What a stack costs and saves: the techniques' own costs, the run's time, its price.

Arithmetic on measured rows, after the search: nothing is measured here. A run is a number of
steps, each as long as the mean step that was measured; evaluation and checkpoints between the
steps count only as far as they lie inside of what was timed.

The price of an hour is the user's, or else the median of the dated prices on record for the
device, times the number of processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from msgspec.structs import replace

from ridgeline.cost.money import RunCost, run_cost, steps_to_pay
from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.records import Ledger, LedgerRow, RunBill, StepProfile
from ridgeline.techniques import all_techniques


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """How long the whole run is, and what an hour of it costs."""

    steps_to_train: float | None = None
    run_hours: float | None = None
    """Hours of the script as it stands; the steps follow from the measured one."""
    usd_per_hour: float | None = None
    """Price of everything that runs the script; None: the price on record."""

    def __post_init__(self) -> None:
        for option, value in (
            ("--steps-to-train", self.steps_to_train),
            ("--run-hours", self.run_hours),
            ("--usd-per-hour", self.usd_per_hour),
        ):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{option} must be above 0, is {value:g}")
        if self.steps_to_train is not None and self.run_hours is not None:
            raise InputError(
                "--steps-to-train and --run-hours both say how long the run is; give one"
            )
        if self.usd_per_hour is not None and not self.says_how_long:
            raise InputError(
                "--usd-per-hour needs the length of the run: --steps-to-train or --run-hours"
            )

    @property
    def says_how_long(self) -> bool:
        """Without a length there is nothing to bill."""
        return self.steps_to_train is not None or self.run_hours is not None


UNPRICED = RunTerms()


def billed(ledger: Ledger, terms: RunTerms) -> Ledger:
    """The ledger with the costs of its techniques and, where the run's length is known, money."""
    rows = [
        replace(row, costs=_costs(row), pays_after_steps=_pays_after(row)) for row in ledger.rows
    ]
    ledger = replace(ledger, rows=rows)
    if not terms.says_how_long:
        return ledger
    step = _mean_step(ledger)
    rate, price_from = _rate(ledger.baseline, terms)
    if terms.steps_to_train is not None:
        steps, steps_from = terms.steps_to_train, "--steps-to-train"
    else:
        assert terms.run_hours is not None
        steps = terms.run_hours * 3600.0 / step
        steps_from = f"--run-hours {terms.run_hours:g}, all of it steps as the script stood"
    final = {id(row) for row in ledger.final_rows}
    before = run_cost(steps, step, rate)
    after = run_cost(steps, step, rate, ledger.cumulative)
    return replace(
        ledger,
        rows=[
            _priced(row, run_cost(steps, step, rate, row.cumulative)) if id(row) in final else row
            for row in rows
        ],
        bill=RunBill(
            steps=steps,
            steps_from=steps_from,
            usd_per_hour=rate,
            price_from=price_from,
            step_seconds=step,
            run_seconds=before.run_seconds,
            usd=before.usd,
            tuned_step_seconds=after.step_seconds,
            tuned_run_seconds=after.run_seconds,
            tuned_usd=after.usd,
            tuned_run_seconds_ci=_between(before.run_seconds, ledger.cumulative_ci),
        ),
    )


def _between(run_seconds: float, faster: tuple[float, float]) -> tuple[float, float] | None:
    low, high = faster
    return (run_seconds / high, run_seconds / low) if low > 0 and math.isfinite(high) else None


def _priced(row: LedgerRow, cost: RunCost) -> LedgerRow:
    return replace(row, run_seconds=cost.run_seconds, usd=cost.usd)


def _costs(row: LedgerRow) -> str:
    """What the cards of a row's techniques say; with several, each says its name."""
    cards = [all_techniques()[name].CARD for name in row.members if name in all_techniques()]
    if len(cards) == 1:
        return cards[0].costs
    return " ".join(f"{card.name}: {card.costs}" for card in cards)


def _pays_after(row: LedgerRow) -> float | None:
    if row.startup_seconds is None:
        return None
    return steps_to_pay(row.startup_seconds, row.baseline_step_seconds, row.step_seconds)


def _mean_step(ledger: Ledger) -> float:
    """Mean step as the script stood, the headline's where the stack was measured beside it."""
    if ledger.step_seconds is not None:
        return ledger.step_seconds[0]
    return ledger.baseline.step_seconds.mean


def _rate(profile: StepProfile, terms: RunTerms) -> tuple[float | None, str]:
    """Dollars per hour of the whole job, and where that comes from."""
    if terms.usd_per_hour is not None:
        return terms.usd_per_hour, "--usd-per-hour"
    reported = profile.environment.device
    device = catalogue.match_reported_name(reported)
    found = [] if device is None else catalogue.prices(device.name)
    if device is None or not found:
        return None, f"no price of {reported} is on record; give --usd-per-hour"
    each = catalogue.typical_usd_per_device_hour(device.name)
    assert each is not None
    count = profile.world_size
    of = f"{count} × {device.name}" if count > 1 else device.name
    newest = max(price.date for price in found)
    return each * count, (
        f"{of} at ${each:.2f} per device-hour, the median of {len(found)} prices on record, "
        f"the newest of {newest}"
    )
