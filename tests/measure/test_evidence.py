"""What the windows after the timed steps are distilled into."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.records import a_profile

from ridgeline.measure.child.fetch_times import FetchTimes
from ridgeline.measure.child.profiler import without_stalls
from ridgeline.measure.live.operator_times import operators_of
from ridgeline.measure.live.steps import growth_per_step
from ridgeline.measure.wire import OperatorCall, Report, StepTimes
from ridgeline.records import Distribution, StepProfile
from ridgeline.records.store import read_record, write_record


def held(*sizes: int) -> Report:
    return Report(steps=[], losses=[], held_bytes=list(sizes))


def test_memory_that_grows_by_the_same_amount_every_step_isgrowth_per_step() -> None:
    assert growth_per_step(held(*range(0, 1000, 100))) == 100.0


@pytest.mark.parametrize(
    "sizes",
    [
        (500, 900, 400, 800, 450, 950, 420),  # batches of different sizes come and go
        (100, 900, 900, 900, 900, 900, 900),  # something was made once
        (900, 800, 700, 600, 500, 400, 300),
        (100, 200, 300),  # too few steps to tell
        (500, 600, 700, 800, 900, 1000, 300, 400, 500, 600, 700),  # garbage, collected once
    ],
)
def test_memory_that_only_varies_is_nogrowth_per_step(sizes: tuple[int, ...]) -> None:
    assert growth_per_step(held(*sizes)) == 0.0


@pytest.mark.parametrize(("collected", "growth"), [(0, 100.0), (300, 100.0), (600, 0.0)])
def test_what_a_collection_of_garbage_takes_away_is_nogrowth_per_step(
    collected: int, growth: float
) -> None:
    report = Report(
        steps=[], losses=[], held_bytes=list(range(0, 1000, 100)), collected_bytes=collected
    )
    assert growth_per_step(report) == growth


@pytest.mark.parametrize(("given", "growth"), [(50, 0.0), (2, 100.0)])
def test_what_the_model_is_given_again_is_nogrowth_per_step(given: int, growth: float) -> None:
    """A call's new keys and the old ones are both there at its end: half of them explain all."""
    report = Report(
        steps=[],
        losses=[],
        held_bytes=list(range(0, 1000, 100)),
        input_bytes=list(range(0, 10 * given, given)),
    )
    assert growth_per_step(report) == growth


def test_no_sampled_steps_show_nogrowth_per_step() -> None:
    assert growth_per_step(None) == 0.0


@given(st.lists(st.floats(min_value=1e-6, max_value=1.0), min_size=1, max_size=50))
def test_leaving_out_stalls_never_adds_time(seconds: list[float]) -> None:
    assert 0.0 < without_stalls(seconds) <= sum(seconds) * (1 + 1e-9)


def test_a_batch_made_in_a_worker_counts_like_one_made_here() -> None:
    times = FetchTimes(num_workers=2)
    assert times.per_batch() is None
    times.add(0, (0.1, 0.05, 1000.0, 0.0))
    times.add(2, (0.3, 0.15, 3000.0, 500.0))
    assert times.per_batch() == pytest.approx((0.2, 0.1, 2000.0, 250.0))
    times.clear()
    assert times.per_batch() is None


def call(name: str, seconds: float, *, calls: int = 1, stalled: float = 0.0) -> OperatorCall:
    return OperatorCall(
        name=name, shapes="[8]", dtype="float32", phase="forward", calls=calls, flops=0.0,
        bytes=32.0, seconds=seconds, stalled_seconds=stalled,
    )  # fmt: skip


def test_operators_keep_their_share_of_a_phase_that_the_instrument_slowed_down() -> None:
    step = StepTimes(seconds=2.0, phases={"forward": 2.0}, samples=0, tokens=0)
    look = Report(steps=[step], losses=[], operators=[call("aten::a", 9.0), call("aten::b", 9.0)])
    profiled = Report(
        steps=[step],
        losses=[],
        profiler=[call("aten::a", 0.6), call("aten::b", 0.2, stalled=0.2)],
    )
    phases = {"forward": Distribution.of([1.0])}
    found = {op.name: op.seconds for op in operators_of(look, profiled, phases, None)}
    # One of the two seconds was spent in operators, 0.2 s of it without a core.
    assert found["aten::a"] == pytest.approx(0.375)
    assert found["aten::b"] == pytest.approx(0.125)


def test_a_loss_that_is_not_finite_survives_the_way_to_disk(tmp_path: Path) -> None:
    profile = a_profile(losses=[1.0, float("nan"), float("inf")])
    write_record(tmp_path / "profile.json", profile)
    losses = read_record(tmp_path / "profile.json", StepProfile).losses
    assert losses[0] == 1.0
    assert all(math.isnan(loss) for loss in losses[1:])
