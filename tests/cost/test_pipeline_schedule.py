"""Pipelines block by block: order, dependencies, idle time and memory, against the papers."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.pipeline_order import work_order
from ridgeline.cost.pipeline_schedule import ChunkSeconds, Timeline, bubble_fraction, simulate
from ridgeline.records.layout import Schedule

SCHEDULES = get_args(Schedule)
SECONDS = st.floats(min_value=0.01, max_value=10.0)


def seconds(forward: float = 1.0, inputs: float = 1.0, weights: float = 1.0) -> ChunkSeconds:
    return ChunkSeconds(
        forward_seconds=forward, backward_input_seconds=inputs, backward_weight_seconds=weights
    )


@st.composite
def timelines(draw: st.DrawFn) -> tuple[Timeline, list[ChunkSeconds], float]:
    """Any schedule, stages of different lengths, any transfer time."""
    schedule = draw(st.sampled_from(SCHEDULES))
    stages = draw(st.integers(1, 6))
    chunks = draw(st.integers(1, 3)) if schedule == "interleaved" else 1
    microbatches = draw(st.integers(1, 10))
    if schedule == "interleaved":
        microbatches = stages * max(1, microbatches // stages)
    times = [seconds(draw(SECONDS), draw(SECONDS), draw(SECONDS)) for _ in range(stages * chunks)]
    travel = draw(st.floats(min_value=0.0, max_value=2.0))
    step = simulate(
        schedule,
        num_stages=stages,
        num_microbatches=microbatches,
        num_chunks=chunks,
        seconds=times,
        p2p_seconds=travel,
    )
    return step, times, travel


@given(timelines())
@settings(max_examples=200, deadline=None)
def test_a_stage_does_one_block_at_a_time_and_all_of_them(
    drawn: tuple[Timeline, list[ChunkSeconds], float],
) -> None:
    step, _, _ = drawn
    halves = 3 if step.schedule == "zero-bubble" else 2
    for stage in step.blocks:
        assert len(stage) == step.num_microbatches * step.num_chunks * halves
        assert len({(one.kind, one.chunk, one.microbatch) for one in stage}) == len(stage)
        for before, after in pairwise(stage):
            assert before.end_seconds <= after.start_seconds


@given(timelines())
@settings(max_examples=200, deadline=None)
def test_nothing_starts_before_what_it_needs_has_arrived(
    drawn: tuple[Timeline, list[ChunkSeconds], float],
) -> None:
    step, times, travel = drawn
    stages, last = step.num_stages, len(times) - 1
    done = {
        ("forward" if one.kind == "forward" else one.kind, one.chunk * stages + rank,
         one.microbatch): one
        for rank, stage in enumerate(step.blocks)
        for one in stage
    }  # fmt: skip
    back = "input" if step.schedule == "zero-bubble" else "backward"
    delay = travel if stages > 1 else 0.0
    for (kind, place, index), one in done.items():
        if kind == "forward" and place:
            assert one.start_seconds >= done["forward", place - 1, index].end_seconds + delay
        if kind == back:
            assert one.start_seconds >= done["forward", place, index].end_seconds
            if place < last:
                assert one.start_seconds >= done[back, place + 1, index].end_seconds + delay
        if kind == "weight":
            assert one.start_seconds >= done["input", place, index].end_seconds


@given(timelines())
@settings(max_examples=100, deadline=None)
def test_a_step_is_never_shorter_than_its_fullest_stage_or_its_longest_path(
    drawn: tuple[Timeline, list[ChunkSeconds], float],
) -> None:
    step, times, travel = drawn
    hops = 2 * (len(times) - 1) * (travel if step.num_stages > 1 else 0.0)
    path = sum(one.forward_seconds + one.backward_input_seconds for one in times) + hops
    assert step.makespan_seconds >= max(step.busy_seconds) - 1e-9
    assert step.makespan_seconds >= path - 1e-9
    assert 0.0 <= step.bubble_fraction < 1.0


@given(
    stages=st.integers(1, 8), groups=st.integers(1, 4), chunks=st.integers(1, 4),
    forward=SECONDS, backward=SECONDS,
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_uniform_times_idle_p_minus_1_over_vm_plus_p_minus_1(
    stages: int, groups: int, chunks: int, forward: float, backward: float
) -> None:
    microbatches = stages * groups
    names: list[Schedule] = ["interleaved"] if chunks > 1 else ["gpipe", "1f1b", "interleaved"]
    for name in names:
        step = simulate(
            name,
            num_stages=stages,
            num_microbatches=microbatches,
            num_chunks=chunks,
            seconds=seconds(forward, backward / 2, backward / 2),
        )
        expected = bubble_fraction(stages, microbatches, chunks)
        assert step.bubble_fraction == pytest.approx(expected, abs=1e-9)


@given(
    stages=st.integers(1, 8), more=st.integers(0, 12), weights=st.floats(0.1, 1.0),
    forward=st.floats(1.0, 2.0), inputs=st.floats(1.0, 2.0),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_zero_bubble_h1_idles_as_its_paper_says(
    stages: int, more: int, weights: float, forward: float, inputs: float
) -> None:
    # Qi et al. 2023, table 2: (p - 1)(F + B - W), for W the shortest, from p micro-batches on.
    step = simulate(
        "zero-bubble",
        num_stages=stages,
        num_microbatches=stages + more,
        seconds=seconds(forward, inputs, weights),
    )
    busy = (stages + more) * (forward + inputs + weights)
    idle = (stages - 1) * (forward + inputs - weights)
    assert step.makespan_seconds == pytest.approx(busy + idle, rel=1e-9)


def test_zero_bubble_cuts_the_idle_time_of_1f1b_to_a_third() -> None:
    plain, cut = (
        simulate(name, num_stages=8, num_microbatches=24, seconds=seconds())
        for name in ("1f1b", "zero-bubble")
    )
    idle = [step.makespan_seconds - 24 * 3 for step in (plain, cut)]
    assert idle == [21.0, 7.0]


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_activations_held_by_each_schedule(stages: int) -> None:
    def held(name: Schedule, chunks: int = 1) -> tuple[float, ...]:
        return simulate(
            name,
            num_stages=stages,
            num_microbatches=4 * stages,
            num_chunks=chunks,
            seconds=seconds(),
        ).peak_live_microbatches

    assert held("gpipe") == (4.0 * stages,) * stages
    assert held("1f1b") == tuple(float(stages - rank) for rank in range(stages))
    assert held("zero-bubble") == (float(stages),) * stages
    # Korthikanti et al. 2022, section 4.2.3: 1 + (p - 1)/(p v) times 1F1B's first stage.
    assert held("interleaved", 4)[0] == stages * (1 + (stages - 1) / (stages * 4))


def test_a_slow_stage_sets_the_pace() -> None:
    times = [seconds(), seconds(3.0, 3.0, 3.0), seconds(), seconds()]
    step = simulate("1f1b", num_stages=4, num_microbatches=16, seconds=times)
    assert step.busy_seconds == (48.0, 144.0, 48.0, 48.0)
    assert 144.0 < step.makespan_seconds < 1.15 * 144.0


def test_transfers_between_stages_lengthen_the_step_but_not_one_stage_alone() -> None:
    def makespan(stages: int, travel: float) -> float:
        return simulate(
            "1f1b", num_stages=stages, num_microbatches=8, seconds=seconds(), p2p_seconds=travel
        ).makespan_seconds

    assert makespan(4, 0.5) >= makespan(4, 0.0) + 2 * 3 * 0.5
    assert makespan(1, 0.5) == makespan(1, 0.0)


@pytest.mark.parametrize(
    ("schedule", "sizes", "message"),
    [
        ("interleaved", {"num_stages": 4, "num_microbatches": 6, "num_chunks": 2}, "multiple of 4"),
        ("1f1b", {"num_stages": 4, "num_microbatches": 8, "num_chunks": 2}, "one chunk per stage"),
        ("gpipe", {"num_stages": 0, "num_microbatches": 8}, "at least one"),
    ],
)
def test_what_no_pipeline_can_do_is_refused(
    schedule: Schedule, sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        work_order(schedule, **sizes)


def test_times_of_too_few_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="need 4 times, not 2"):
        simulate("1f1b", num_stages=4, num_microbatches=4, seconds=[seconds()] * 2)
