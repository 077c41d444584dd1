"""What edges, joins and deadlines do with frames, step by step on a clock that the test moves."""

from __future__ import annotations

from typing import Any

import pytest
from tests.frames.shapes import pipeline, sensor, stage
from tests.frames.simulated_driver import SimulatedDriver

from ridgeline.frames.flow import FrameFlow
from ridgeline.frames.jobs import FrameJob
from ridgeline.records.pipeline_shape import EdgePolicy, EdgeShape, PipelineShape
from ridgeline.records.realtime_run import FrameFates


def _job(flow: FrameFlow, name: str, now: float) -> FrameJob:
    job = flow.take(name, now)
    assert job is not None, f"{name} has nothing to do"
    return job


def _run(flow: FrameFlow, name: str, now: float, output: Any = "out") -> FrameJob:
    """A call that takes no time."""
    job = _job(flow, name, now)
    flow.finish(job, now, output)
    return job


def _ends(flow: FrameFlow, place: int = 0) -> list[tuple[int, str, str, str]]:
    table = flow.fates()[place]
    return list(zip(table.frames, table.kinds, table.places, table.reasons, strict=True))


def _camera(flow: FrameFlow, *frames: int, period: float = 0.1) -> None:
    for frame in frames:
        flow.arrive("camera", frame, frame * period, frame * period, f"image {frame}")


def _edge(policy: EdgePolicy, depth: int = 2, source: str = "camera") -> EdgeShape:
    return EdgeShape(source=source, policy=policy, depth=depth)


def _one_stage(policy: EdgePolicy, depth: int = 2) -> PipelineShape:
    return pipeline(sensor("camera", 10.0), stage("detect", _edge(policy, depth)))


# --- edges ---------------------------------------------------------------------------------------


def test_a_full_edge_that_blocks_drops_what_a_sensor_sends() -> None:
    flow = FrameFlow(_one_stage("block"))
    _camera(flow, 0, 1, 2)
    assert [_run(flow, "detect", 0.3).frame for _ in range(2)] == [0, 1]
    assert flow.take("detect", 0.3) is None
    assert _ends(flow)[2] == (2, "dropped", "camera -> detect", "full")


def test_drop_oldest_makes_room_for_the_newest() -> None:
    flow = FrameFlow(_one_stage("drop-oldest"))
    _camera(flow, 0, 1, 2, 3)
    assert [_run(flow, "detect", 0.3).frame for _ in range(2)] == [2, 3]
    dropped = ("dropped", "camera -> detect", "oldest")
    assert _ends(flow)[:2] == [(0, *dropped), (1, *dropped)]


def test_latest_only_keeps_one_whatever_its_depth() -> None:
    flow = FrameFlow(_one_stage("latest-only", depth=5))
    _camera(flow, 0, 1, 2, 3)
    assert flow.waiting == {"camera -> detect": 1}
    assert _run(flow, "detect", 0.3).frame == 3


def test_an_unbounded_edge_loses_nothing_and_grows() -> None:
    flow = FrameFlow(_one_stage("unbounded", depth=1))
    _camera(flow, *range(50))
    assert flow.waiting == {"camera -> detect": 50}
    assert flow.in_flight == 50


def test_a_stage_whose_output_finds_no_room_waits_and_takes_nothing() -> None:
    shape = pipeline(
        sensor("camera", 10.0),
        stage("fast", _edge("unbounded")),
        stage("slow", _edge("block", 1, "fast")),
    )
    flow = FrameFlow(shape)
    _camera(flow, 0, 1, 2)
    _run(flow, "fast", 0.3)
    _run(flow, "fast", 0.3)
    assert flow.waiting["fast -> slow"] == 1
    assert flow.take("fast", 0.3) is None, "its second output waits for room"
    assert flow.in_flight == 3
    assert _run(flow, "slow", 0.4).frame == 0
    assert "fast" in flow.woken() or flow.take("fast", 0.4) is not None
    assert _run(flow, "slow", 0.4).frame == 1


def test_a_sensor_without_a_rate_loses_nothing_where_all_edges_block() -> None:
    shape = pipeline(
        sensor("camera"),
        stage("left", "camera"),
        stage("right", "camera"),
        stage("join", "left", "right"),
        deadline_seconds=1e9,
    )
    driver = SimulatedDriver(shape, seconds=lambda _stage, dice: dice.uniform(0.0, 0.02))
    (table,) = driver.run(300)
    assert set(table.kinds) == {"delivered"}
    assert len(table.kinds) == 300


# --- joins ---------------------------------------------------------------------------------------


def _two_cameras(tolerance: float, **right: Any) -> PipelineShape:
    return pipeline(
        sensor("left", 10.0),
        sensor("right", 10.0),
        stage("join", "left", EdgeShape(source="right", **right), tolerance_seconds=tolerance),
    )


def test_frames_of_two_sensors_are_joined_within_the_tolerance() -> None:
    flow = FrameFlow(_two_cameras(0.01))
    flow.arrive("left", 0, 0.100, 0.100, "L0")
    assert flow.take("join", 0.1) is None
    flow.arrive("right", 0, 0.108, 0.108, "R0")
    assert _run(flow, "join", 0.11).inputs == ("L0", "R0")


def test_the_nearest_of_those_that_wait_is_taken_and_older_ones_are_dropped() -> None:
    flow = FrameFlow(_two_cameras(0.05))
    for frame, stamp in enumerate((0.065, 0.095)):
        flow.arrive("right", frame, stamp, stamp, f"R{frame}")
    flow.arrive("left", 0, 0.100, 0.100, "L0")
    assert _run(flow, "join", 0.1).inputs == ("L0", "R1")
    assert _ends(flow, 1)[0] == (0, "dropped", "right -> join", "no partner")


def test_a_frame_out_of_tolerance_is_dropped_as_soon_as_no_partner_can_come() -> None:
    flow = FrameFlow(_two_cameras(0.01))
    flow.arrive("left", 0, 0.100, 0.100, "L0")
    flow.arrive("right", 0, 0.105 + 0.01, 0.115, "R0")
    assert flow.take("join", 0.12) is None
    assert _ends(flow)[0] == (0, "dropped", "left -> join", "no partner")


def test_a_partner_lost_elsewhere_is_given_up_at_once_and_named_as_the_cause() -> None:
    shape = pipeline(
        sensor("camera", 10.0),
        stage("boxes", "camera"),
        stage("lanes", "camera"),
        stage("join", "boxes", "lanes"),
    )
    flow = FrameFlow(shape)
    _camera(flow, 0)
    _run(flow, "boxes", 0.01)
    job = _job(flow, "lanes", 0.0)
    assert flow.fail(job, 0.02, "raised ValueError: no lanes") == ["join", "lanes"]
    assert flow.take("join", 0.03) is None
    assert flow.in_flight == 0
    assert _ends(flow) == [(0, "failed", "lanes", "raised ValueError: no lanes")]


def test_a_frame_is_never_joined_with_another_frame_of_its_own_sensor() -> None:
    shape = pipeline(
        sensor("camera", 10.0),
        stage("boxes", "camera"),
        stage("join", "camera", "boxes", tolerance_seconds=5.0),
    )
    flow = FrameFlow(shape)
    _camera(flow, 0, 1)
    flow.fail(_job(flow, "boxes", 0.1), 0.1, "raised ValueError: none")
    _run(flow, "boxes", 0.2, "boxes 1")
    assert _run(flow, "join", 0.2).inputs == ("image 1", "boxes 1")
    assert [kind for _, kind, _, _ in _ends(flow)] == ["failed", "delivered"]


def test_a_slow_sensor_serves_again_until_it_sends_anew() -> None:
    flow = FrameFlow(_two_cameras(0.0, reuse=True))
    flow.arrive("right", 0, 0.0, 0.0, "map 0")
    seen = []
    for frame in range(1, 6):
        if frame == 4:
            flow.arrive("right", 1, 0.39, 0.39, "map 1")
        flow.arrive("left", frame, frame / 10, frame / 10, f"L{frame}")
        seen.append(_run(flow, "join", frame / 10).inputs[1])
    assert seen == ["map 0", "map 0", "map 0", "map 1", "map 1"]
    assert [kind for _, kind, _, _ in _ends(flow, 1)] == ["delivered", "delivered"]
    (calls,) = flow.calls()
    assert calls.behind == {"left": [1, 2, 3, 4, 5], "right": [0, 0, 0, 1, 1]}


def test_a_deadline_does_not_count_from_what_was_reused() -> None:
    shape = pipeline(
        *_two_cameras(0.0, reuse=True).sensors,
        *_two_cameras(0.0, reuse=True).stages,
        deadline_seconds=0.033,
    )
    flow = FrameFlow(shape)
    flow.arrive("right", 0, 0.0, 0.0, "map")
    flow.arrive("left", 0, 5.0, 5.0, "L0")
    assert _run(flow, "join", 5.01).deadline == pytest.approx(5.033)
    assert _ends(flow)[0] == (0, "delivered", "", "")


def test_a_sensor_that_stops_lets_the_others_frames_go() -> None:
    flow = FrameFlow(_two_cameras(0.01))
    flow.arrive("left", 0, 0.1, 0.1, "L0")
    assert flow.take("join", 0.1) is None
    assert flow.stop("right", 0.2) == ["join"]
    assert flow.take("join", 0.2) is None
    assert _ends(flow)[0] == (0, "dropped", "left -> join", "no partner")


def test_stages_that_wait_for_each_other_do_not_stand_still() -> None:
    """`split` may not go on before `last` has taken what it gave, and `last` not before `join` has
    a later frame of `split`."""
    shape = pipeline(
        sensor("radar", 10.0),
        sensor("camera", 10.0),
        stage("split", "camera"),
        stage("join", "radar", EdgeShape(source="split", depth=8), tolerance_seconds=0.2),
        stage("last", "join", EdgeShape(source="split", depth=1), tolerance_seconds=0.2),
    )
    flow = FrameFlow(shape)
    for frame in range(5):
        flow.arrive("camera", frame, frame / 10, frame / 10, f"C{frame}")
        if (job := flow.take("split", frame / 10)) is not None:
            flow.finish(job, frame / 10, f"S{frame}")
    assert flow.waiting["camera -> split"] == 2, "split waits for room at last"
    flow.arrive("radar", 0, 0.4, 0.45, "R0")
    for _ in range(5):
        for name in ("last", "join", "split"):
            if (job := flow.take(name, 0.5)) is not None:
                flow.finish(job, 0.5, f"{name} {job.frame}")
    assert flow.results == {"last": "last 0"}
    camera = dict(zip(flow.fates()[1].frames, flow.fates()[1].reasons, strict=True))
    assert "standstill" in camera.values()


# --- deadlines -----------------------------------------------------------------------------------


def _late(on_miss: str) -> FrameFlow:
    """Frame 0 ran in time; frame 1 lies at `detect` 5 ms past its deadline."""
    shape = pipeline(
        sensor("camera", 10.0),
        stage("detect", "camera", on_miss=on_miss),
        stage("plan", "detect"),
        deadline_seconds=0.033,
    )
    flow = FrameFlow(shape)
    _camera(flow, 0)
    job = _job(flow, "detect", 0.0)
    flow.finish(job, 0.001, "boxes 0")
    _run(flow, "plan", 0.002)
    _camera(flow, 1)
    return flow


def test_a_late_frame_is_finished_where_nothing_else_is_said() -> None:
    flow = _late("finish")
    assert _run(flow, "detect", 0.138, "boxes 1").mode == "run"
    _run(flow, "plan", 0.138)
    assert _ends(flow)[1] == (1, "late", "camera -> detect", "waited 38.0 ms")


def test_a_late_frame_is_dropped() -> None:
    flow = _late("drop")
    assert flow.take("detect", 0.138) is None
    assert _ends(flow)[1] == (1, "dropped", "detect", "too late")


def test_a_late_frame_skips_the_stage() -> None:
    flow = _late("skip")
    assert flow.take("detect", 0.138) is None
    assert flow.woken()[0] == "plan"
    assert _run(flow, "plan", 0.138).inputs == ("image 1",)
    assert flow.calls()[0].modes == ["run", "skip"]


def test_a_late_frame_gets_the_last_result_again() -> None:
    flow = _late("hold")
    assert flow.take("detect", 0.138) is None
    assert _run(flow, "plan", 0.138).inputs == ("boxes 0",)
    assert flow.calls()[0].modes == ["run", "hold"]


def test_a_late_frame_gets_the_cheaper_call() -> None:
    flow = _late("degrade")
    assert _run(flow, "detect", 0.138, "fewer boxes").mode == "degrade"
    assert _run(flow, "plan", 0.138).inputs == ("fewer boxes",)


def test_the_first_frame_runs_where_there_is_nothing_to_hold() -> None:
    shape = pipeline(
        sensor("camera"), stage("detect", "camera", on_miss="hold"), deadline_seconds=0.033
    )
    flow = FrameFlow(shape)
    flow.arrive("camera", 0, 0.0, 0.0, "image")
    assert _job(flow, "detect", 1.0).mode == "run"


def test_the_cheaper_call_runs_while_it_can_still_help() -> None:
    """20 ms here and 10 ms behind fit into 33 ms where 2 ms were lost, not where 5 were."""
    shape = pipeline(
        sensor("camera", 10.0),
        stage("detect", "camera", on_miss="degrade"),
        stage("plan", "detect"),
        deadline_seconds=0.033,
    )
    flow = FrameFlow(shape)
    modes = []
    for frame, lost in enumerate((0.0, 0.002, 0.005)):
        _camera(flow, frame)
        start = frame / 10 + lost
        job = _job(flow, "detect", start)
        modes.append(job.mode)
        flow.finish(job, start + 0.020, "boxes")
        job = _job(flow, "plan", start + 0.020)
        flow.finish(job, start + 0.030, "path")
    assert modes == ["run", "run", "degrade"]


def test_a_stage_that_was_slow_for_a_while_is_tried_again() -> None:
    """Slow for 20 frames, fast after: were its times never forgotten, it would never run again."""
    slow_until = 20
    shape = pipeline(
        sensor("camera", 10.0), stage("detect", "camera", on_miss="drop"), deadline_seconds=0.033
    )
    flow = FrameFlow(shape)
    for frame in range(200):
        _camera(flow, frame)
        job = flow.take("detect", frame / 10)
        if job:
            flow.finish(job, frame / 10 + (0.05 if frame < slow_until else 0.01), "boxes")
    kinds = flow.fates()[0].kinds
    assert "dropped" in kinds[:60]
    assert set(kinds[100:]) == {"delivered"}


# --- sensors and fates ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "stamp", "kind", "reason"),
    [
        (1, 0.2, "repeated id", "repeated id"),
        (2, 0.2 + 3600, "future stamp", "stamp from the future"),
        (2, 0.05, "stale stamp", "stamp not after the last"),
    ],
)
def test_a_frame_that_cannot_be_is_noted_and_never_runs(
    frame: int, stamp: float, kind: str, reason: str
) -> None:
    released: list[str] = []
    flow = FrameFlow(_one_stage("block", depth=9), release=released.append)
    _camera(flow, 0, 1)
    flow.arrive("camera", frame, stamp, 0.2, "wrong")
    assert [fault.kind for fault in flow.faults] == [kind]
    assert _ends(flow)[2] == (frame, "dropped", "camera", reason)
    assert released == ["wrong"]
    assert [_run(flow, "detect", 0.2).frame for _ in range(2)] == [0, 1]
    assert flow.take("detect", 0.2) is None


def test_gaps_and_late_frames_are_noted_and_run() -> None:
    flow = FrameFlow(_one_stage("block", depth=9))
    _camera(flow, 0, 1, 4)
    flow.arrive("camera", 5, 0.5, 0.58, "late")
    noted = [(fault.kind, fault.frame, fault.detail) for fault in flow.faults]
    assert noted == [
        ("gap", 4, "2 missing after 1"),
        ("late", 5, "180 ms after the one before"),
    ]
    assert [_run(flow, "detect", 0.6).frame for _ in range(4)] == [0, 1, 4, 5]


def test_a_stage_that_raises_on_frame_512_costs_that_frame_alone() -> None:
    flow = FrameFlow(_one_stage("block"))
    for frame in range(600):
        _camera(flow, frame)
        job = _job(flow, "detect", frame / 10)
        if frame == 512:
            flow.fail(job, frame / 10, "raised ValueError: empty image")
        else:
            flow.finish(job, frame / 10, "boxes")
    table = flow.fates()[0]
    assert [kind != "delivered" for kind in table.kinds].count(True) == 1
    assert _ends(flow)[512] == (512, "failed", "detect", "raised ValueError: empty image")


def test_what_took_most_time_is_named_for_a_late_frame() -> None:
    shape = pipeline(
        sensor("camera", 10.0),
        stage("short", "camera"),
        stage("long", "short"),
        deadline_seconds=0.033,
    )
    driver = SimulatedDriver(
        shape, seconds=lambda name, _dice: {"short": 0.009, "long": 0.028}[name]
    )
    table: FrameFates = driver.run(3)[0]
    assert table.places == ["long"] * 3
    assert table.reasons == ["took 28.0 ms"] * 3


def test_a_frame_still_on_its_way_is_unfinished() -> None:
    flow = FrameFlow(_one_stage("block"))
    _camera(flow, 0)
    _job(flow, "detect", 0.0)
    assert (flow.in_flight, _ends(flow)) == (1, [(0, "unfinished", "", "")])


def test_a_call_that_is_not_running_cannot_end() -> None:
    flow = FrameFlow(_one_stage("block"))
    _camera(flow, 0)
    job = _job(flow, "detect", 0.0)
    flow.finish(job, 0.1, "boxes")
    with pytest.raises(ValueError, match="detect does not run job 0"):
        flow.finish(job, 0.2, "boxes")


def test_measured_times_replace_the_clock_of_the_flow() -> None:
    from ridgeline.frames.call_log import MeasuredTimes

    flow = FrameFlow(_one_stage("block"))
    _camera(flow, 0, 1)
    times = MeasuredTimes(started=0.012, ended=0.018, cpu_seconds=0.005)
    flow.finish(_job(flow, "detect", 0.010), 0.020, "boxes", times)
    flow.finish(_job(flow, "detect", 0.020), 0.030, "boxes")
    (calls,) = flow.calls()
    assert (calls.started, calls.ended) == ([0.012, 0.020], [0.018, 0.030])
    assert calls.cpu_seconds == [0.005, 0.0]
    assert calls.gpu_seconds == []
