"""The simulated clock: hand-computed queues, shared cores, busy processors, no frame lost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.realtime.timings import chain, drifting, timing_of, with_policy

from ridgeline.errors import InputError
from ridgeline.frames.outcomes import measured_fates, sink_ages
from ridgeline.plan.realtime.event_loop import simulate_timing
from ridgeline.records.pipeline_shape import (
    EdgePolicy,
    EdgeShape,
    PipelineShape,
    SensorShape,
    StageShape,
)
from ridgeline.records.realtime_run import RealtimeRun


def ages(run: RealtimeRun, sink: str) -> list[float]:
    return sink_ages(run, sink).tolist()


def test_an_unbounded_queue_before_one_stage_waits_as_lindley_says() -> None:
    """Lindley (1952): the wait of a frame is max(0, wait + service of the last − period)."""
    service = drifting(3, 400, mean=0.095, spread=0.3)
    timing = chain({"only": service}, rate=10.0, policy="unbounded")
    wait, expected = 0.0, []
    for seconds in service:
        expected.append(wait + seconds)
        wait = max(0.0, wait + seconds - 0.1)
    assert ages(simulate_timing(timing, 400), "only") == pytest.approx(expected)


def test_stages_with_workers_of_their_own_overlap_and_one_thread_does_not() -> None:
    times = {"a": [0.03], "b": [0.05]}
    overlapped = simulate_timing(chain(times, rate=None), 200)
    alone = simulate_timing(chain(times, rate=None, executor="inline"), 200)
    assert overlapped.seconds == pytest.approx(200 * 0.05 + 0.03)
    assert alone.seconds == pytest.approx(200 * 0.08)


def test_a_frame_that_is_due_while_the_one_thread_is_busy_ages_from_when_it_was_due() -> None:
    timing = chain({"a": [0.15, 0.01]}, rate=10.0, executor="inline")
    found = ages(simulate_timing(timing, 2), "a")
    assert found == pytest.approx([0.15, 0.06])


def test_three_stages_on_two_cores_run_at_two_thirds_of_their_speed() -> None:
    shape = PipelineShape(
        name="fan",
        sensors=(SensorShape(name="camera", rate_hz=1.0),),
        stages=tuple(StageShape(name=name, inputs=(EdgeShape(source="camera"),)) for name in "abc"),
    )
    times = {name: [0.1] for name in "abc"}
    enough = simulate_timing(timing_of(shape, times), 3)
    scarce = simulate_timing(timing_of(shape, times, cores=2), 3)
    asleep = simulate_timing(timing_of(shape, times, cores=2, core_share=0.0), 3)
    assert ages(enough, "a") == pytest.approx([0.1] * 3)
    assert ages(scarce, "a") == pytest.approx([0.15] * 3)
    assert ages(asleep, "a") == pytest.approx([0.1] * 3)


def test_a_processor_runs_as_many_stages_at_once_as_it_is_said_to() -> None:
    timing = chain({"a": [0.03], "b": [0.05]}, rate=None)
    stages = tuple(msgspec.structs.replace(one, processor="gpu") for one in timing.shape.stages)
    shape = msgspec.structs.replace(timing.shape, stages=stages, processors={"gpu": 1})
    assert simulate_timing(replace(timing, shape=shape), 100).seconds == pytest.approx(100 * 0.08)


def test_drop_oldest_keeps_data_young_where_unbounded_lets_it_age() -> None:
    times = {"a": [0.02], "slow": [0.2]}
    bounded = ages(simulate_timing(chain(times, policy="drop-oldest"), 200), "slow")
    unbounded = ages(simulate_timing(chain(times, policy="unbounded"), 200), "slow")
    assert max(bounded) <= 0.22 + 0.1 + 2 * 0.2 + 1e-9
    assert unbounded[-1] == pytest.approx(199 * 0.1 + 0.22)


def test_a_join_takes_the_newest_frame_of_a_slow_sensor() -> None:
    shape = PipelineShape(
        name="join",
        sensors=(SensorShape(name="camera", rate_hz=30.0), SensorShape(name="lidar", rate_hz=10.0)),
        stages=(
            StageShape(name="image", inputs=(EdgeShape(source="camera"),)),
            StageShape(
                name="fuse",
                inputs=(
                    EdgeShape(source="image"),
                    EdgeShape(source="lidar", reuse=True),
                ),
                tolerance_seconds=0.2,
            ),
        ),
    )
    run = simulate_timing(timing_of(shape, {"image": [0.01], "fuse": [0.005]}), 90)
    assert set(measured_fates(run, "fuse").kinds) == {"delivered"}
    lidar = next(one for one in run.fates if one.sensor == "lidar")
    assert len(lidar.frames) == 30


def test_a_stage_that_degrades_needs_the_time_of_its_cheaper_call() -> None:
    timing = chain({"a": [0.2]}, deadline=0.1)
    stages = tuple(msgspec.structs.replace(one, on_miss="degrade") for one in timing.shape.stages)
    shape = msgspec.structs.replace(timing.shape, stages=stages)
    with pytest.raises(InputError, match="no time of its cheaper call is known"):
        simulate_timing(replace(timing, shape=shape), 5)


@given(
    policy=st.sampled_from(["block", "drop-oldest", "latest-only", "unbounded"]),
    executor=st.sampled_from(["inline", "threads"]),
    load=st.floats(0.2, 2.5),
    cores=st.sampled_from([None, 1, 2]),
    seed=st.integers(0, 1000),
)
def test_every_frame_has_a_fate_and_the_same_question_the_same_answer(
    policy: EdgePolicy, executor: str, load: float, cores: int | None, seed: int
) -> None:
    times = {name: drifting(seed + k, 40, load * 0.04, 0.5) for k, name in enumerate("abc")}
    timing = with_policy(chain(times, executor=executor, cores=cores), policy)  # type: ignore[arg-type]
    run = simulate_timing(timing, 60, seed)
    fates = run.fates[0]
    assert fates.frames == list(range(60))
    assert "unfinished" not in fates.kinds
    ends = [at for at, kind in zip(fates.ended, fates.kinds, strict=True) if kind == "delivered"]
    assert ends == sorted(ends, key=lambda at: at or 0.0)
    assert simulate_timing(timing, 60, seed) == run


def test_more_frames_than_were_measured_are_drawn_in_blocks_and_differ_by_seed() -> None:
    times = {"a": drifting(1, 100, 0.05, 0.3)}
    long = simulate_timing(chain(times, policy="unbounded"), 1000)
    other = simulate_timing(chain(times, policy="unbounded"), 1000, seed=1)
    seconds = np.subtract(long.calls[0].ended, long.calls[0].started)
    assert seconds[:100] == pytest.approx(times["a"])
    assert set(np.round(seconds, 9)) <= set(np.round(times["a"], 9))
    follows = {(round(a, 9), round(b, 9)) for a, b in pairwise(times["a"])}
    kept = sum((round(a, 9), round(b, 9)) in follows for a, b in pairwise(seconds))
    assert kept >= 0.95 * 1000
    assert long.calls[0].ended[:50] == other.calls[0].ended[:50]
    assert long.calls[0].ended != other.calls[0].ended
