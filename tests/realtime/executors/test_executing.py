"""One pipeline, three executors: the same frames come out, whatever goes wrong on the way."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.realtime.executors.open_arenas import arenas_of

from ridgeline.errors import ChildDied, InputError
from ridgeline.realtime.execute import ExecutorName, execute
from ridgeline.realtime.pipeline import Pipeline, SensorReading
from ridgeline.records.realtime_run import Collection, FrameFates, RealtimeRun, SteadyMeasure

ALL: tuple[ExecutorName, ...] = ("inline", "threads", "processes")
every_executor = pytest.mark.parametrize("executor", ALL)


@pytest.fixture(autouse=True)
def one_thread_of_torch() -> Iterator[None]:
    """Torch as it is where it is not loaded: with nothing to share among stages."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def image(frame: int) -> np.ndarray:
    return np.full((3, 8, 8), float(frame), np.float32)


def chain(*calls: Callable[[Any], Any], rate: float | None = None) -> Pipeline:
    """A camera and stages one after the other."""
    pipeline = Pipeline("chain", deadline="10s")
    node = pipeline.sensor("camera", image, rate=rate)
    if rate is not None:  # room for all its frames: a machine that stands still must drop none
        node = node.via("block", depth=100)
    for number, call in enumerate(calls):
        node = pipeline.stage(f"stage{number}", call, node)
    return pipeline


def results(pipeline: Pipeline, **options: Any) -> tuple[RealtimeRun, list[tuple[int, Any]]]:
    got: list[tuple[int, Any]] = []
    run = execute(pipeline, on_result=lambda _, frame, result: got.append((frame, result)),
                  **options)  # fmt: skip
    return run, got


def counts(fates: FrameFates) -> dict[str, int]:
    return {kind: fates.kinds.count(kind) for kind in sorted(set(fates.kinds))}


@every_executor
def test_every_frame_comes_out_in_order_with_its_own_result(executor: ExecutorName) -> None:
    pipeline = chain(lambda x: x + 1, lambda x: {"twice": 2 * x}, lambda x: float(x["twice"].max()))
    run, got = results(pipeline, executor=executor, frames=40, warmup=5)
    assert got == [(frame, 2.0 * (frame + 1)) for frame in range(45)]
    assert counts(run.fates[0]) == {"delivered": 45}
    assert [calls.frames for calls in run.calls] == [list(range(45))] * 3
    for calls in run.calls:
        assert all(a <= b for a, b in zip(calls.started, calls.ended, strict=True))
        assert len(calls.cpu_seconds) == 45
    assert run.executor == executor
    assert run.environment is not None


@every_executor
def test_a_frame_on_which_a_stage_raises_fails_alone(executor: ExecutorName) -> None:
    def breaks(x: np.ndarray) -> float:
        if x[0, 0, 0] == 512:
            raise ValueError("no box here")
        return float(x[0, 0, 0])

    run, got = results(chain(lambda x: x, breaks), executor=executor, frames=600, warmup=0)
    assert [frame for frame, _ in got] == [frame for frame in range(600) if frame != 512]
    fates = run.fates[0]
    assert counts(fates) == {"delivered": 599, "failed": 1}
    assert fates.kinds[512] == "failed"
    assert (fates.places[512], fates.reasons[512]) == ("stage1", "raised ValueError: no box here")
    (note,) = run.notes
    assert note.startswith(f"stage1 raised ValueError: no box here ({__file__}:")
    assert note.endswith("first on frame 512")


@every_executor
def test_stamps_are_when_frames_were_due_so_nothing_drifts(executor: ExecutorName) -> None:
    slow = itertools.chain([0.03], itertools.repeat(0.0))
    pipeline = chain(lambda x: time.sleep(next(slow)), rate=200)
    run = execute(pipeline, executor=executor, frames=50, warmup=0)
    fates = run.fates[0]
    assert fates.stamps == pytest.approx([frame / 200 for frame in range(50)], abs=1e-12)
    assert all(at >= stamp for at, stamp in zip(fates.arrived, fates.stamps, strict=True))


@every_executor
def test_a_slow_sensor_serves_beside_a_fast_one(executor: ExecutorName) -> None:
    pipeline = Pipeline("fusion")
    camera = pipeline.sensor("camera", lambda k: k, rate=200)
    lidar = pipeline.sensor("lidar", lambda k: 100 + k, rate=50)
    # Room for all its frames: a machine that stands still for a while must drop none.
    frames = camera.via("block", depth=40)
    pipeline.stage("fuse", lambda a, b: (a, b), frames, lidar.via("latest-only", reuse=True))
    run, got = results(pipeline, executor=executor, frames=40, warmup=0)
    camera_fates = next(one for one in run.fates if one.sensor == "camera")
    assert len(camera_fates.frames) == 40
    assert set(camera_fates.kinds) == {"delivered"}
    assert [a for _, (a, _) in got] == list(range(40))
    seen = [b for _, (_, b) in got]
    assert seen == sorted(seen)
    lidar_fates = next(one for one in run.fates if one.sensor == "lidar")
    assert set(seen) <= {100 + frame for frame in lidar_fates.frames}


@every_executor
def test_a_tight_loop_keeps_the_frames_together_that_belong_together(
    executor: ExecutorName,
) -> None:
    pipeline = Pipeline("two cameras")
    left = pipeline.sensor("left", lambda k: k, rate=0.1)
    right = pipeline.sensor("right", lambda k: k, rate=0.1)
    pipeline.stage("stereo", lambda a, b: (a, b), left, right)
    began = time.monotonic()
    run, got = results(pipeline, executor=executor, frames=30, warmup=0, tight=True)
    assert [pair for _, pair in got] == [(k, k) for k in range(30)]
    assert run.seconds < 100 < 29 / 0.1  # of waiting there is nothing
    assert time.monotonic() - began >= run.seconds


@every_executor
def test_under_overload_every_frame_has_a_fate_and_the_newest_come_through(
    executor: ExecutorName,
) -> None:
    pipeline = Pipeline("overload")
    camera = pipeline.sensor("camera", image, rate=400)
    pipeline.stage("slow", lambda _: time.sleep(0.01), camera.via("drop-oldest", depth=1))
    run = execute(pipeline, executor=executor, frames=80, warmup=0)
    fates = run.fates[0]
    assert len(fates.frames) == 80
    assert set(fates.kinds) == {"delivered", "dropped"}
    lost = [row for row in zip(fates.kinds, fates.places, fates.reasons, strict=True)
            if row[0] == "dropped"]  # fmt: skip
    assert set(lost) == {("dropped", "camera -> slow", "oldest")}
    assert fates.kinds[-1] == "delivered"


@every_executor
def test_a_sensor_whose_source_ends_ends_the_run(executor: ExecutorName) -> None:
    pipeline = Pipeline("short")
    camera = pipeline.sensor("camera", [image(k) for k in range(7)])
    pipeline.stage("look", lambda x: x.sum(), camera)
    run = execute(pipeline, executor=executor, frames=100, warmup=0)
    assert counts(run.fates[0]) == {"delivered": 7}
    (fault,) = run.sensor_faults
    assert (fault.sensor, fault.kind, fault.frame) == ("camera", "stopped", 7)
    assert fault.detail == "its source ended after 7 frames"


@every_executor
def test_a_read_that_raises_loses_one_frame(executor: ExecutorName) -> None:
    def read(frame: int) -> int:
        if frame == 3:
            raise OSError("no signal")
        return frame

    pipeline = Pipeline("flaky")
    pipeline.stage("look", lambda x: x, pipeline.sensor("camera", read))
    run, got = results(pipeline, executor=executor, frames=8, warmup=0)
    assert [frame for frame, _ in got] == [0, 1, 2, 4, 5, 6, 7]
    assert [(one.kind, one.frame) for one in run.sensor_faults] == [("raised", 3), ("gap", 4)]
    assert run.sensor_faults[0].detail == "OSError: no signal"


@every_executor
def test_identities_and_stamps_of_the_sensor_itself_are_taken(executor: ExecutorName) -> None:
    began = time.monotonic()

    def read(frame: int) -> SensorReading:
        return SensorReading(data=frame, frame=1000 + min(frame, 4), stamp=time.monotonic())

    pipeline = Pipeline("stamped")
    pipeline.stage("look", lambda x: x, pipeline.sensor("camera", read))
    run = execute(pipeline, executor=executor, frames=6, warmup=0)
    fates = run.fates[0]
    assert fates.frames == [1000, 1001, 1002, 1003, 1004, 1004]
    assert fates.reasons[-1] == "repeated id"
    assert 0 <= fates.stamps[0] <= time.monotonic() - began


@pytest.mark.sweep("processes")
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_sensor_that_falls_silent_is_given_up(
    executor: ExecutorName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ridgeline.realtime.executors.dispatch.SILENT_SECONDS", 1.0)
    released = threading.Event()

    def read(frame: int) -> int:
        if frame == 5:
            released.wait()
        return frame

    pipeline = Pipeline("silent")
    # Stamps join within half a period.
    camera = pipeline.sensor("camera", lambda k: k, rate=10).via("block", depth=40)
    radar = pipeline.sensor("radar", read, rate=10).via("block", depth=40)
    pipeline.stage("join", lambda a, b: (a, b), camera, radar)
    try:
        run, got = results(pipeline, executor=executor, frames=8, warmup=0)
    finally:
        released.set()
    assert [frame for frame, _ in got] == [0, 1, 2, 3, 4]
    (fault,) = [one for one in run.sensor_faults if one.kind == "stopped"]
    assert (fault.sensor, fault.detail[:27]) == ("radar", "its read has not returned f")
    lost = next(one for one in run.fates if one.sensor == "camera")
    assert counts(lost) == {"delivered": 5, "dropped": 3}


class Settling:
    """Steadiness that takes its time after the warm-up, and writes down what it is told."""

    def __init__(self) -> None:
        self.measures = [SteadyMeasure(name="rest", granted=True, detail="slept")]
        self.collections: list[Collection] = []
        self.told: list[str] = []

    def prepare(self, pipeline: Pipeline) -> Pipeline:
        self.told.append("prepare")
        return pipeline

    def start(self, workers: list[str]) -> None:
        self.told.append(f"start {' '.join(workers)}")

    def enter_worker(self, worker: str) -> None:
        self.told.append(f"enter {worker}")

    def warmed_up(self) -> None:
        self.told.append("warmed up")
        time.sleep(0.15)

    def idle(self, slack_seconds: float) -> None:
        assert 0 < slack_seconds <= 1 / 50
        now = time.monotonic()
        if len(self.collections) < 3:
            self.collections.append(Collection(started=now, ended=now, generation=0, thread="x"))

    def stop(self) -> None:
        self.told.append("stop")


@every_executor
def test_settling_after_the_warm_up_makes_no_frame_late(executor: ExecutorName) -> None:
    steady = Settling()
    run = execute(chain(lambda x: x, rate=50), executor=executor, frames=15, warmup=5,
                  steady=steady)  # fmt: skip
    workers = {"inline": "inline"}.get(executor, "stage0")
    assert steady.told[:2] == ["prepare", f"start {workers}"]
    assert steady.told.count("warmed up") == 1
    assert steady.told[-1] == "stop"
    assert f"enter {workers}" in steady.told or executor == "processes"
    stamps = run.fates[0].stamps
    gaps = [b - a for a, b in itertools.pairwise(stamps)]
    assert gaps[4] > 0.15  # frames waited with their sensors
    # Sensors wait for a frame of the warm-up that takes long, as on a crowded machine any may.
    assert min(gaps[:4]) > 1 / 50 - 1e-9
    assert gaps[5:] == pytest.approx([1 / 50] * 14)
    assert counts(run.fates[0]) == {"delivered": 20}
    assert [measure.detail for measure in run.steady] == ["slept"]
    assert all(0 <= one.started <= run.seconds for one in run.collections)
    assert run.collections


@every_executor
def test_progress_is_told_beside_the_run(executor: ExecutorName) -> None:
    told: list[int] = []
    execute(chain(lambda x: x, rate=100), executor=executor, frames=80, warmup=0,
            progress=told.append)  # fmt: skip
    assert told
    assert told == sorted(told)
    assert told[-1] <= 80


@every_executor
def test_ctrl_c_ends_after_the_frames_in_flight_with_what_there_is(
    executor: ExecutorName,
) -> None:
    before = signal.getsignal(signal.SIGINT)
    got: list[int] = []

    def take(_sink: str, frame: int, _result: Any) -> None:
        got.append(frame)
        if len(got) == 20:
            os.kill(os.getpid(), signal.SIGINT)

    pipeline = chain(lambda x: x.sum(), rate=50)
    run = execute(pipeline, executor=executor, frames=2000, warmup=0, on_result=take)
    assert signal.getsignal(signal.SIGINT) is before
    sent = len(run.fates[0].frames)
    assert 20 <= sent < 2000
    assert counts(run.fates[0]) == {"delivered": sent}
    assert got == list(range(sent))
    assert run.notes == [f"interrupted by Ctrl-C after {sent} frames of camera"]


def test_no_frames_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"0 frames after 10 of warm-up: give at least 1 and 0"):
        execute(chain(lambda x: x), frames=0)


class Remembers:
    """A stage with a state that points into its input: the frame before."""

    def __init__(self) -> None:
        self.before: np.ndarray | None = None

    def __call__(self, x: np.ndarray) -> tuple[float, float]:
        before = x if self.before is None else self.before
        self.before = x[:1]  # a view keeps the memory as the array does
        return float(x.max()), float(before.max())


def test_memory_that_a_stage_remembers_is_not_written_again() -> None:
    pipeline = chain(lambda x: x * 1.0, Remembers(), rate=None)
    _, got = results(pipeline, executor="processes", frames=200, warmup=0)
    assert [pair for _, pair in got] == [(k, max(0.0, k - 1.0)) for k in range(200)]


@pytest.fixture
def arenas_closed() -> Iterator[None]:
    """What stages share has no name, so it is gone with the last process that has it open."""
    yield
    assert arenas_of("self") == set()


@pytest.mark.usefixtures("arenas_closed")
def test_a_killed_stage_is_named_and_started_again() -> None:
    def dies(x: np.ndarray) -> int:
        if x[0, 0, 0] == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    run, got = results(chain(lambda x: x, dies), executor="processes", frames=60, warmup=0)
    assert counts(run.fates[0]) == {"delivered": 59, "failed": 1}
    assert run.fates[0].reasons[30] == "its process died (killed by SIGKILL)"
    first, second = got[0][1], got[-1][1]
    assert first != second
    (note,) = run.notes
    assert note == (
        f"stage1: its process {first} ended on frame 30 (killed by SIGKILL) and was started "
        "again, without its state"
    )


@pytest.mark.usefixtures("arenas_closed")
def test_a_run_that_is_to_stop_with_a_stage_returns_what_there_is() -> None:
    def dies(x: np.ndarray) -> None:
        if x[0, 0, 0] == 30:
            os.kill(os.getpid(), signal.SIGKILL)

    run = execute(chain(dies), executor="processes", frames=10_000, warmup=0, on_death="stop")
    assert run.fates[0].kinds[:31] == ["delivered"] * 30 + ["failed"]
    assert len(run.fates[0].frames) < 100
    assert "ended on frame 30 (killed by SIGKILL) after" in run.notes[-1]


@pytest.mark.usefixtures("arenas_closed")
def test_a_stage_that_dies_again_and_again_ends_the_run_in_one_line() -> None:
    pipeline = chain(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(ChildDied, match=r"stage0: its process \d+ ended on frame 2 \(killed by "
                       r"SIGKILL\), 3 times in a row; run the pipeline in one thread"):  # fmt: skip
        execute(pipeline, executor="processes", frames=50, warmup=0)


def test_a_result_that_no_process_can_take_fails_with_the_reason() -> None:
    run = execute(chain(lambda _: threading.Lock(), id), executor="processes", frames=3, warmup=0)
    assert counts(run.fates[0]) == {"failed": 3}
    assert run.fates[0].places == ["stage0"] * 3
    assert run.fates[0].reasons[0].startswith("its result cannot be sent: raised TypeError: cannot")
