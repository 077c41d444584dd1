"""Money from measured rows: the length and the price of a run, whose they are, what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.report.records import a_ledger, a_profile, an_environment

from ridgeline.records import Ledger
from ridgeline.tune.billing import RunTerms, billed

PROGRAM = [sys.executable, "-m", "ridgeline.cli.main"]


def on_device(device: str, ranks: int = 1) -> Ledger:
    environment = msgspec.structs.replace(an_environment(), device=device)
    baseline = msgspec.structs.replace(a_profile(), environment=environment, world_size=ranks)
    return a_ledger(baseline=baseline, environment=environment)


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--usd-per-hour", "4"], "--usd-per-hour needs the length of the run"),
        (["--steps-to-train", "5", "--run-hours", "5"], "give one"),
        (["--run-hours", "0"], "--run-hours must be above 0, is 0"),
        (["--steps-to-train", "nan"], "--steps-to-train must be above 0, is nan"),
        (["--run-hours", "3", "--usd-per-hour", "-1"], "--usd-per-hour must be above 0, is -1"),
    ],
)
def test_terms_that_bill_nothing_are_refused_before_anything_runs(
    options: list[str], said: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [*PROGRAM, "tune", *options, "--", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_hours_of_the_script_as_it_stands_are_what_the_run_takes() -> None:
    ledger = billed(a_ledger(), RunTerms(run_hours=100.0, usd_per_hour=500.0))
    bill = ledger.bill
    assert bill is not None
    assert bill.run_seconds == pytest.approx(100 * 3600)
    assert bill.usd == pytest.approx(50_000)
    assert bill.tuned_usd == pytest.approx(50_000 / 2.31)
    assert bill.steps * bill.step_seconds == pytest.approx(100 * 3600)
    assert bill.tuned_run_seconds_ci is not None
    low, high = bill.tuned_run_seconds_ci
    assert low == pytest.approx(360_000 / 2.37)
    assert high == pytest.approx(360_000 / 2.24)


def test_only_rows_of_the_final_stack_have_a_price() -> None:
    ledger = billed(a_ledger(), RunTerms(steps_to_train=1000.0, usd_per_hour=1.0))
    priced = [row.technique for row in ledger.rows if row.usd is not None]
    assert priced == ledger.stack_rows
    for row in ledger.final_rows:
        assert ledger.bill is not None
        assert row.run_seconds == pytest.approx(ledger.bill.run_seconds / row.cumulative)


def test_a_known_device_is_billed_at_the_price_on_record_for_each_process() -> None:
    one = billed(on_device("NVIDIA H100 80GB HBM3"), RunTerms(run_hours=1.0)).bill
    eight = billed(on_device("NVIDIA H100 80GB HBM3", ranks=8), RunTerms(run_hours=1.0)).bill
    assert one is not None
    assert eight is not None
    assert one.usd_per_hour is not None
    assert eight.usd_per_hour == pytest.approx(8 * one.usd_per_hour)
    assert "8 × H100" in eight.price_from
    assert "median of" in eight.price_from
    assert "prices on record" in eight.price_from


def test_a_device_without_a_price_gets_hours_and_says_what_is_missing() -> None:
    bill = billed(on_device("AMD EPYC 9R14"), RunTerms(steps_to_train=1e6)).bill
    assert bill is not None
    assert (bill.usd, bill.tuned_usd, bill.usd_per_hour) == (None, None, None)
    assert bill.run_seconds > 0
    assert bill.price_from == "no price of AMD EPYC 9R14 is on record; give --usd-per-hour"


def test_the_users_price_goes_before_the_one_on_record() -> None:
    bill = billed(
        on_device("NVIDIA H100 80GB HBM3"), RunTerms(run_hours=1.0, usd_per_hour=7.0)
    ).bill
    assert bill is not None
    assert (bill.usd_per_hour, bill.price_from) == (7.0, "--usd-per-hour")


def test_a_ledger_without_terms_has_costs_and_no_bill() -> None:
    ledger = billed(a_ledger(), RunTerms())
    assert ledger.bill is None
    costs = {row.technique: row.costs for row in ledger.rows}
    assert costs["fused-optimizer"].startswith("Nothing; needs floating-point")
