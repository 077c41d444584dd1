"""Tables of runs that are written down call by call: what was slow, lost and left out."""

from __future__ import annotations

import msgspec
import pytest
from tests.realtime.recorded import PERIOD, STAGES, recorded_run

from ridgeline.frames.outcomes import path_ages, sink_ages
from ridgeline.realtime.summary import summarise_run
from ridgeline.records.pipeline_shape import EdgeShape, PipelineShape, SensorShape, StageShape
from ridgeline.records.realtime_run import FrameFates, RealtimeRun, StageCalls


def test_a_stage_is_held_to_its_budget_and_else_to_the_deadline() -> None:
    backbone, detect, _ = summarise_run(recorded_run(200, slow={50: 0.03})).stages
    assert backbone.seconds is not None
    assert detect.seconds is not None
    assert backbone.share == pytest.approx(backbone.seconds.p99.seconds / 0.012)
    assert detect.share == pytest.approx(detect.seconds.p99.seconds / 0.033)
    assert backbone.over_budget == 0
    assert detect.seconds.worst_seconds == pytest.approx(0.03 + STAGES["detect"] * 1.01)


def test_the_warm_up_is_in_the_run_and_not_in_its_tables() -> None:
    slow = recorded_run(100, slow={2: 0.5}, warmup=3)
    report = summarise_run(slow)
    assert max(slow.calls[1].ended[2] - slow.calls[1].started[2], 0.5) > 0.5
    assert report.sinks[0].frames == 97
    assert report.sinks[0].late == 0
    assert report.stages[1].seconds is not None
    assert report.stages[1].seconds.count == 97
    assert report.stages[1].seconds.worst_seconds < 0.1


def test_lost_frames_are_misses_and_are_counted_by_place_and_reason() -> None:
    report = summarise_run(recorded_run(100, slow={9: 0.1}, dropped=[20, 21, 22], failed=[40]))
    [sink] = report.sinks
    assert (sink.delivered, sink.late, sink.dropped, sink.failed) == (95, 1, 3, 1)
    assert sink.miss_share == pytest.approx(0.05)
    assert sink.miss_share_low is not None
    assert sink.miss_share_high is not None
    assert sink.miss_share_low < 0.05 < sink.miss_share_high
    found = [(one.place, one.reason, one.frames, one.first_frame) for one in report.losses]
    assert found == [
        ("camera -> backbone", "oldest", 3, 20),
        ("backbone", "raised ValueError: no boxes", 1, 40),
    ]
    assert sink.age is not None
    assert sink.age.count == 96


def test_a_call_that_raised_says_nothing_of_how_long_its_stage_takes() -> None:
    run = recorded_run(50, failed=[7])
    calls = run.calls[0]
    raised = StageCalls(
        stage="backbone",
        frames=[*calls.frames, 7],
        ready=[*calls.ready, 9.0],
        started=[*calls.started, 9.0],
        ended=[*calls.ended, 11.0],
        modes=[*calls.modes, "run"],
    )
    report = summarise_run(msgspec.structs.replace(run, calls=[raised, *run.calls[1:]]))
    assert report.stages[0].seconds is not None
    assert report.stages[0].seconds.worst_seconds < 0.1


def test_a_tight_loop_is_said_to_flatter_by_the_ratio_of_medians() -> None:
    run = recorded_run(100)
    tight = msgspec.structs.replace(run, tight_loop={"backbone": [0.005, 0.006, 0.004]})
    backbone, detect, _ = summarise_run(tight).stages
    assert backbone.flattery == pytest.approx(0.0103 / 0.005, rel=0.01)
    assert detect.flattery is None


def test_a_declared_path_is_held_to_its_own_budget() -> None:
    report = summarise_run(recorded_run(100, slow={3: 0.01, 4: 0.01}))
    whole, part = report.paths
    assert (whole.sensor, whole.stage, whole.budget_seconds) == ("camera", "plan", 0.033)
    assert (part.stage, part.budget_seconds, part.over_budget) == ("detect", 0.020, 2)


def slow_lidar(*, reuse: bool = True) -> RealtimeRun:
    """A camera at 25 Hz, whose frames are fused with those of a lidar at 6.25 Hz."""
    frames = list(range(40))
    stamps = [frame * PERIOD for frame in frames]
    lidar = [frame // 4 * 4 * PERIOD for frame in frames]
    ended = [stamp + 0.01 for stamp in stamps]
    shape = PipelineShape(
        name="fused",
        deadline_seconds=0.2,
        sensors=(SensorShape(name="camera", rate_hz=25), SensorShape(name="lidar", rate_hz=6.25)),
        stages=(
            StageShape(
                name="fuse",
                inputs=(EdgeShape(source="camera"), EdgeShape(source="lidar", reuse=reuse)),
                tolerance_seconds=0.2,
            ),
        ),
    )

    def fates(sensor: str, numbers: list[int], at: list[float], out: list[float]) -> FrameFates:
        return FrameFates(
            sensor=sensor, sink="fuse", frames=numbers, stamps=at, arrived=at, ended=[*out],
            kinds=["delivered"] * len(at), places=[""] * len(at), reasons=[""] * len(at),
        )  # fmt: skip

    return RealtimeRun(
        shape=shape,
        executor="simulated",
        seconds=2.0,
        calls=[
            StageCalls(
                stage="fuse",
                frames=frames,
                ready=stamps,
                started=stamps,
                ended=ended,
                modes=["run"] * 40,
                behind={"camera": frames, "lidar": [frame // 4 for frame in frames]},
            )
        ],
        fates=[
            fates("camera", frames, stamps, ended),
            fates("lidar", list(range(10)), lidar[::4], ended[::4]),
        ],
    )


def test_a_path_tells_how_old_a_slow_sensors_data_grew() -> None:
    run = slow_lidar()
    assert max(path_ages(run, "camera", "fuse")) == pytest.approx(0.01)
    assert max(path_ages(run, "lidar", "fuse")) == pytest.approx(3 * PERIOD + 0.01)
    paths = [(one.sensor, one.budget_seconds) for one in summarise_run(run).paths]
    assert paths == [("camera", 0.2), ("lidar", None)]


def test_a_result_is_as_old_as_the_oldest_data_that_its_deadline_counts_from() -> None:
    assert max(sink_ages(slow_lidar(reuse=True), "fuse")) == pytest.approx(0.01)
    joined = slow_lidar(reuse=False)
    assert sorted(sink_ages(joined, "fuse")) == pytest.approx(
        sorted(path_ages(joined, "lidar", "fuse"))
    )
    assert [one.budget_seconds for one in summarise_run(joined).paths] == [0.2, 0.2]
