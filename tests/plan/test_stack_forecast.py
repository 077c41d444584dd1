"""A proved stack with rows left out: products of rows, and what was measured where all are in."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.report.records import a_ledger

from ridgeline.cli.main import run
from ridgeline.cost.product_interval import product_interval
from ridgeline.errors import InputError
from ridgeline.plan.stack_forecast import forecast_stack
from ridgeline.records.store import write_record


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    write_record(tmp_path / "ledger.json", a_ledger())
    return tmp_path / "ledger.json"


def test_the_whole_stack_is_what_was_measured_side_by_side(ledger: Path) -> None:
    found, given_ledger = forecast_stack(ledger, steps_to_train=1e6, usd_per_hour=30.0), a_ledger()
    assert found.measured
    assert found.final.cumulative == given_ledger.cumulative
    assert found.final.interval == given_ledger.cumulative_ci
    mean = given_ledger.baseline.step_seconds.mean
    assert found.start.usd == pytest.approx(1e6 * mean / 3600.0 * 30.0)
    assert found.final.usd == pytest.approx(found.start.usd / given_ledger.cumulative)
    assert found.final.peak_memory_bytes == given_ledger.final_rows[-1].peak_memory_bytes
    assert [row.technique for row in found.rows] == given_ledger.stack_rows
    assert set(found.not_kept) == {"channels-last", "loader-workers", "matmul-precision-medium"}


def test_a_row_that_is_left_out_leaves_the_product_of_the_others(ledger: Path) -> None:
    rows = a_ledger().final_rows
    found = forecast_stack(ledger, without=[rows[1].technique])
    others = [row for row in rows if row is not rows[1]]
    assert not found.measured
    assert found.final.cumulative == pytest.approx(math.prod(row.multiplier for row in others))
    assert [row.applied for row in found.rows] == [row is not rows[1] for row in rows]
    assert found.final.run_seconds is None
    saved = rows[0].peak_memory_bytes - rows[1].peak_memory_bytes
    whole = forecast_stack(ledger).final.peak_memory_bytes
    assert found.final.peak_memory_bytes == pytest.approx(whole + saved)
    nothing = forecast_stack(ledger, without=[row.technique for row in rows])
    assert nothing.final == nothing.start
    assert nothing.largest == ""


SPANS = st.lists(
    st.tuples(st.floats(0.5, 3.0), st.floats(1.0, 1.5), st.floats(1.0, 1.5)), min_size=1, max_size=6
)


@given(SPANS)
@settings(max_examples=50, deadline=None)
def test_an_interval_of_a_product_holds_it_and_is_narrower_than_all_ends_at_once(
    spans: list[tuple[float, float, float]],
) -> None:
    factors = [middle for middle, _, _ in spans]
    intervals = [(middle / below, middle * above) for middle, below, above in spans]
    low, high = product_interval(factors, intervals)
    product, slack = math.prod(factors), 1.0 + 1e-9
    assert low <= product * slack
    assert product <= high * slack
    assert math.prod(one for one, _ in intervals) <= low * slack
    assert high <= math.prod(one for _, one in intervals) * slack
    if len(spans) == 1:
        assert (low, high) == pytest.approx(intervals[0])


def test_the_command_prints_it_and_refuses_what_is_no_stack(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", "stack", str(ledger), "--without", "torch-compile"]
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["record"] == "stack-forecast"
    expected = msgspec.json.encode(forecast_stack(ledger, without=["torch-compile"]))
    assert found == json.loads(expected)
    assert run(words) == 0
    assert "torch-compile (off)" in capsys.readouterr().out
    assert run([*words[:3], "--without", "nothing-such"]) == 2
    assert "no such row there; it has autocast-bf16" in capsys.readouterr().err
    assert run([*words, "--steps-to-train", "0"]) == 2
    assert "--steps-to-train 0: give a number above 0" in capsys.readouterr().err
    write_record(tmp_path / "none.json", a_ledger(rows=[], stack_rows=[]))
    with pytest.raises(InputError, match="nothing to switch"):
        forecast_stack(tmp_path / "none.json")
    write_record(tmp_path / "odd.json", a_ledger(cumulative_ci=(-1.0, 2.0)))
    with pytest.raises(InputError, match="no measured ones"):
        forecast_stack(tmp_path / "odd.json")
