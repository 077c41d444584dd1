"""The gate on runs that are written down: what is kept, what is broken, what nobody can prove."""

from __future__ import annotations

import pytest
from tests.realtime.recorded import recorded_run, shape

from ridgeline.errors import InputError
from ridgeline.realtime.gate import GateLimits, judge_run
from ridgeline.records.realtime_report import GateCheck, GateVerdict
from ridgeline.records.realtime_run import RealtimeRun


def verdict(run: RealtimeRun, limits: GateLimits) -> GateVerdict:
    found = judge_run(run, limits)
    assert found is not None
    return found


def only_check(run: RealtimeRun, limits: GateLimits) -> GateCheck:
    [check] = verdict(run, limits).checks
    return check


def test_without_a_limit_there_is_no_verdict() -> None:
    assert judge_run(recorded_run(20), GateLimits()) is None


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (GateLimits(max_miss=0.02), True),
        (GateLimits(max_miss=0.005), False),
        (GateLimits(worst_seconds=0.2), True),
        (GateLimits(worst_seconds=0.05), False),
        (GateLimits(mean_seconds=0.02), True),
        (GateLimits(mean_seconds=0.015), False),
    ],
)
def test_a_limit_is_judged_by_what_was_found(limits: GateLimits, kept: bool) -> None:
    run = recorded_run(400, slow={10: 0.1, 200: 0.1}, dropped=[300, 301])
    assert only_check(run, limits).passed is kept
    assert verdict(run, limits).passed is kept


def test_one_broken_limit_breaks_the_gate() -> None:
    found = verdict(recorded_run(400), GateLimits(worst_seconds=1.0, mean_seconds=0.001))
    assert [one.passed for one in found.checks] == [True, False]
    assert not found.passed


def test_the_tail_over_the_median_is_what_jitters_and_not_what_is_slow() -> None:
    steady = recorded_run(1000)
    jittery = recorded_run(1000, slow=dict.fromkeys(range(0, 1000, 40), 0.014))
    assert only_check(steady, GateLimits(p99_over_p50=1.1)).passed
    check = only_check(jittery, GateLimits(p99_over_p50=1.1))
    assert not check.passed
    assert check.found == pytest.approx((0.0175 + 0.014) / 0.017, rel=0.03)
    assert check.low is not None
    assert check.low > 1.1


def test_few_frames_are_told_what_they_do_not_prove() -> None:
    misses = only_check(recorded_run(300), GateLimits(max_miss=0.001))
    assert misses.passed
    assert "300 frames do not prove it" in misses.note
    assert "3,838 without a miss would" in misses.note
    tail = only_check(recorded_run(300), GateLimits(p99_over_p50=2.0))
    assert "it takes 368" in tail.note
    assert only_check(recorded_run(5000), GateLimits(max_miss=0.001)).note == ""


def test_a_run_without_a_result_keeps_no_limit() -> None:
    nothing = recorded_run(5, failed=range(5))
    limits = GateLimits(max_miss=0.5, p99_over_p50=2.0, worst_seconds=1.0, mean_seconds=1.0)
    assert not any(one.passed for one in verdict(nothing, limits).checks)


def test_a_constant_stream_is_judged_by_its_999th_of_a_thousand() -> None:
    nine = dict.fromkeys(range(100, 10_000, 1111), 0.1)
    found = only_check(recorded_run(10_000, slow=nine), GateLimits(constant_stream=True))
    assert len(nine) == 9
    assert found.passed
    assert "not proven" in found.note
    twelve = dict.fromkeys(range(100, 10_000, 830), 0.1)
    broken = only_check(recorded_run(10_000, slow=twelve), GateLimits(constant_stream=True))
    assert len(twelve) == 12
    assert not broken.passed
    assert broken.found == pytest.approx(0.117, rel=0.02)
    calm = only_check(recorded_run(10_000), GateLimits(constant_stream=True))
    assert (calm.passed, calm.note) == (True, "")
    assert calm.high is not None


def test_in_a_constant_stream_a_lost_frame_never_ends() -> None:
    lost = only_check(
        recorded_run(10_000, dropped=range(0, 10_000, 500)), GateLimits(constant_stream=True)
    )
    assert (lost.passed, lost.found) == (False, None)
    assert "20 frames have no result" in lost.note


def test_a_constant_stream_that_ended_early_claims_nothing() -> None:
    short = only_check(recorded_run(9_999), GateLimits(constant_stream=True))
    assert (short.passed, short.found) == (False, None)
    assert "carry no 99.9th percentile" in short.note


@pytest.mark.parametrize(
    ("limits", "frames", "declared", "said"),
    [
        (GateLimits(constant_stream=True), 9_999, {}, "takes 10000 frames or more"),
        (GateLimits(constant_stream=True), 10_000, {"deadline": None}, "give --deadline"),
        (GateLimits(constant_stream=True), 10_000, {"rate": None}, "the sensor camera has none"),
        (GateLimits(max_miss=0.1), 10, {"deadline": None}, "needs a deadline to miss"),
    ],
)
def test_what_no_run_could_be_judged_by_is_refused_before_it_runs(
    limits: GateLimits, frames: int, declared: dict[str, float | None], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        limits.check_fits(shape(**declared), frames)  # type: ignore[arg-type]
