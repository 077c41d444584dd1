"""A training loop as a timeline: lanes never overlap, gaps and work add up, cures cure."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.step_timeline import LoopTimes, StepTimeline, step_timeline

TIME = st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.2])


def loop(**changes: float) -> LoopTimes:
    usual = {
        "load_seconds": 0.05, "copy_seconds": 0.01, "forward_seconds": 0.03,
        "backward_seconds": 0.06, "optimizer_seconds": 0.01, "reduce_seconds": 0.0,
    }  # fmt: skip
    return LoopTimes(**{**usual, **changes})


@settings(max_examples=60)
@given(
    TIME, TIME, TIME, st.integers(0, 4), st.integers(1, 3), st.integers(1, 3),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_lanes_do_one_thing_at_a_time_and_the_device_works_or_waits(
    load: float, copy: float, reduce: float, workers: int, prefetch: int, accumulate: int,
    pinned: bool, overlap: bool,
) -> None:  # fmt: skip
    times = loop(load_seconds=load, copy_seconds=copy, reduce_seconds=reduce)
    found = step_timeline(times, workers, prefetch, accumulate, 6, pinned, overlap)
    for lane in found.lanes:
        blocks = sorted(
            (one for one in found.blocks if one.lane == lane), key=lambda one: one.start_seconds
        )
        for one, after in pairwise(blocks):
            assert one.end_seconds <= after.start_seconds + 1e-9
    device = [(b.start_seconds, b.end_seconds) for b in found.blocks if b.lane == "device"]
    device += [(gap.start_seconds, gap.end_seconds) for gap in found.gaps]
    covered = 0.0
    for start, end in sorted(device):
        assert start == pytest.approx(covered)
        covered = end
    assert found.busy_share * found.step_seconds + sum(
        found.waited_seconds.values()
    ) == pytest.approx(found.step_seconds)


@settings(max_examples=40)
@given(TIME, TIME, st.integers(0, 4), st.integers(1, 3))
def test_more_workers_pinning_and_overlap_never_hurt(
    load: float, reduce: float, workers: int, accumulate: int
) -> None:
    times = loop(load_seconds=load, reduce_seconds=reduce)

    def seconds(workers: int, *, pinned: bool, overlap: bool) -> float:
        return step_timeline(times, workers, 2, accumulate, 12, pinned, overlap).step_seconds

    slowest = seconds(workers, pinned=False, overlap=False)
    assert seconds(workers, pinned=True, overlap=False) <= slowest + 1e-9
    assert seconds(workers, pinned=False, overlap=True) <= slowest + 1e-9
    if workers:
        assert seconds(2 * workers, pinned=True, overlap=True) <= (
            seconds(workers, pinned=True, overlap=True) + 1e-9
        )


def test_the_number_of_workers_that_is_named_keeps_up() -> None:
    times = loop(load_seconds=0.43)
    few: StepTimeline = step_timeline(times, num_workers=2, num_steps=40)
    assert few.bound == "data"
    assert few.step_seconds == pytest.approx(0.43 / 2, rel=0.05)
    enough = step_timeline(times, num_workers=few.least_workers, num_steps=40)
    assert enough.bound == "compute"
    assert step_timeline(times, num_workers=few.least_workers - 1, num_steps=40).bound == "data"


def test_gaps_are_named_by_what_they_wait_for() -> None:
    assert step_timeline(loop(), pinned=False).bound == "copy"
    assert step_timeline(loop(reduce_seconds=0.1), overlap=False).bound == "network"
    assert step_timeline(loop(reduce_seconds=0.03)).bound in ("compute", "network")
    assert step_timeline(loop(load_seconds=0.0), num_workers=0).bound == "compute"


@pytest.mark.parametrize(
    "wrong", [{"num_workers": -1}, {"num_steps": 1}, {"prefetch": 0}, {"num_steps": 10**6}]
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"give|that many"):
        step_timeline(loop(), **wrong)  # type: ignore[arg-type]
