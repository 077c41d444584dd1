"""`ridgeline realtime run`: what it prints and writes, what it refuses, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.records.realtime_run import RealtimeRun
from ridgeline.records.store import read_record

PIPELINE = '''
"""A camera whose frames go through two stages, the second slow on every tenth."""

import time

from ridgeline.realtime.pipeline import Pipeline, SensorReading


def detect(frame):
    if frame % 10 == 5:
        time.sleep({slow})
    return frame


pipeline = Pipeline("front", deadline="{deadline}")
camera = pipeline.sensor("camera", {read}, rate="200Hz")
features = pipeline.stage("backbone", lambda frame: frame, camera.via({edge}), budget="1s")
boxes = pipeline.stage("detect", detect, features)
pipeline.path(camera, features, budget="2s")
'''


def write_pipeline(
    folder: Path,
    *,
    slow: float = 0.0,
    deadline: str = "30s",
    read: str = "lambda number: number",
    edge: str = '"unbounded"',  # a busy machine drops no frame of it
) -> str:
    path = folder / "pipeline.py"
    text = PIPELINE.format(slow=slow, deadline=deadline, read=read, edge=edge)
    path.write_text(text)
    return str(path)


def report(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    assert run(["realtime", "run", *words, "--json"]) == code, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_run_prints_its_stages_and_writes_all_that_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["realtime", "run", write_pipeline(tmp_path), "--frames", "30", "--warmup", "5"]
    files = {option: tmp_path / f"{option}.file" for option in ("out", "trace", "html")}
    for option, path in files.items():
        words += [f"--{option}", str(path)]
    assert run(words) == 0
    out, err = capsys.readouterr()
    assert "front: camera at 200 Hz; deadline 30.0 s; inline" in out
    assert "camera → backbone" in out
    assert "35 of 35 frames" in err or "frames" in err.splitlines()[0]
    recorded = read_record(files["out"], RealtimeRun)
    assert [len(calls.frames) for calls in recorded.calls] == [35, 35]
    assert recorded.warmup_frames == 5
    assert sorted(recorded.tight_loop) == ["backbone", "detect"]
    assert recorded.environment is not None
    assert any(
        event.get("cat") == "realtime stage"
        for event in json.loads(files["trace"].read_text())["traceEvents"]
    )
    page = files["html"].read_text()
    assert 'id="plot-ages"' in page
    assert 'id="plot-worst"' in page


def test_the_json_is_the_report_of_the_frames_after_the_warm_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report([write_pipeline(tmp_path), "--frames", "30", "--tight-frames", "0"], capsys)
    assert found["record"] == "realtime-report"
    assert [one["stage"] for one in found["stages"]] == ["backbone", "detect"]
    assert found["sinks"][0]["delivered"] == 30
    assert found["stages"][0]["seconds"]["count"] == 30
    assert found["stages"][0]["flattery"] is None
    assert found["gate"] is None


def test_a_broken_gate_is_exit_3_after_the_tables_and_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pipeline(tmp_path, slow=0.06, deadline="50ms")
    words = ["realtime", "run", path, "--frames", "40", "--tight-frames", "0", "--max-miss", "1%"]
    assert run([*words, "--out", str(tmp_path / "run.json")]) == 3
    out, err = capsys.readouterr()
    assert "gate failed" in out
    assert "detect" in out.partition("Misses")[2]
    assert "max-miss at detect" in err.splitlines()[-1]
    assert read_record(tmp_path / "run.json", RealtimeRun).fates[0].kinds.count("late") >= 4


def test_a_kept_gate_is_exit_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["--max-miss", "0", "--worst", "20s", "--mean", "20s", "--p99-over-p50", "10000"]
    path = write_pipeline(tmp_path)
    found = report([path, "--frames", "30", "--tight-frames", "0", *limits], capsys)
    assert found["gate"]["passed"]
    assert [one["limit"] for one in found["gate"]["checks"]] == [
        "max-miss", "p99-over-p50", "worst", "mean",
    ]  # fmt: skip


def test_a_deadline_on_the_command_line_takes_the_place_of_the_pipelines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pipeline(tmp_path, slow=0.02)
    few = ["--frames", "20", "--tight-frames", "0"]
    assert report([path, *few], capsys)["sinks"][0]["late"] == 0
    found = report([path, *few, "--deadline", "10ms"], capsys)
    assert found["deadline_seconds"] == 0.01
    assert found["sinks"][0]["late"] >= 2


def test_what_overload_drops_is_counted_at_its_edge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pipeline(tmp_path, slow=0.1, edge='"latest-only"')
    found = report([path, "--frames", "30", "--tight-frames", "0"], capsys)
    [lost] = found["losses"]
    assert (lost["place"], lost["reason"]) == ("camera -> backbone", "oldest")
    sink = found["sinks"][0]
    assert lost["frames"] == sink["dropped"] > 5
    assert sink["delivered"] + sink["dropped"] == 30


def test_a_sensor_that_repeats_an_identity_is_told_with_the_fate_of_its_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read = "lambda n: SensorReading(data=n, frame=min(n, 24))"
    path = write_pipeline(tmp_path, read=read)
    found = report([path, "--frames", "20", "--tight-frames", "0"], capsys)
    assert {one["kind"] for one in found["sensor_faults"]} - {"late"} == {"repeated id"}
    assert [(one["reason"], one["frames"]) for one in found["losses"]] == [("repeated id", 5)]


def test_a_stamp_from_the_future_is_told_with_the_fate_of_its_frame(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read = "lambda n: SensorReading(data=n, stamp=time.monotonic() + (1e3 if n == 14 else 0))"
    path = write_pipeline(tmp_path, read=read)
    found = report([path, "--frames", "20", "--tight-frames", "0"], capsys)
    assert [(one["reason"], one["first_frame"]) for one in found["losses"]] == [
        ("stamp from the future", 14)
    ]


def test_a_sensor_that_stops_ends_the_run_with_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pipeline(tmp_path, read="range(18)")
    found = report([path, "--frames", "500", "--tight-frames", "0"], capsys)
    assert found["sinks"][0]["frames"] == 8


def test_a_stage_that_raises_is_told_with_the_fate_of_its_frame(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(write_pipeline(tmp_path))
    path.write_text(path.read_text().replace("time.sleep(0.0)", "[].pop(frame)"))
    found = report([str(path), "--frames", "20", "--tight-frames", "0"], capsys)
    assert found["sinks"][0]["failed"] == 2
    [lost] = found["losses"]
    assert (lost["kind"], lost["place"], lost["first_frame"]) == ("failed", "detect", 15)
    assert "IndexError" in lost["reason"]


@pytest.mark.slow
def test_a_stage_whose_process_is_killed_begins_anew_and_its_frame_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(write_pipeline(tmp_path))
    killed = "frame == 15 and __import__('os').kill(__import__('os').getpid(), 9)"
    path.write_text(path.read_text().replace("time.sleep(0.0)", killed))
    words = [str(path), "--frames", "200", "--tight-frames", "0", "--executor", "processes"]
    found = report(words, capsys)
    assert found["sinks"][0]["failed"] >= 1
    assert {one["place"] for one in found["losses"] if one["kind"] == "failed"} == {"detect"}
    assert any("died" in one["reason"] for one in found["losses"])
    assert any("detect" in note for note in found["notes"])
    assert found["sinks"][0]["delivered"] > 0
    ended = report([*words, "--on-death", "stop"], capsys)
    assert ended["sinks"][0]["frames"] < 200


SLOW_AT_FIRST = '''
"""Two stages that are slow at their first call, as those that compile are."""

import time

from ridgeline.realtime.pipeline import Pipeline


class Compiled:
    calls = 0

    def __call__(self, frame):
        self.calls += 1
        if self.calls == 1:
            time.sleep(0.5)
        return frame


pipeline = Pipeline("front", deadline="30s")
camera = pipeline.sensor("camera", lambda number: number, rate="30Hz")
lidar = pipeline.sensor("lidar", lambda number: number, rate="10Hz")
features = pipeline.stage("backbone", Compiled(), camera.via("unbounded"))
boxes = pipeline.stage("detect", Compiled(), features.via("unbounded"))
points = pipeline.stage("cluster", Compiled(), lidar.via("unbounded"))
'''


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("warmup", [1, 2])
@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_no_counted_frame_waits_for_a_slow_first_call(
    executor: str, warmup: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "pipeline.py", tmp_path / "run.json"
    path.write_text(SLOW_AT_FIRST)
    words = [str(path), "--frames", "8", "--warmup", str(warmup), "--tight-frames", "0"]
    found = report([*words, "--executor", executor, "--out", str(out)], capsys)
    assert found["sinks"][0]["delivered"] == 8
    assert [one for one in found["sensor_faults"] if one["kind"] != "late"] == []
    recorded = read_record(out, RealtimeRun)
    slow = [calls.ended[0] for calls in recorded.calls]
    assert all(calls.ended[0] - calls.started[0] >= 0.5 for calls in recorded.calls)
    for fates in recorded.fates:
        assert min(fates.stamps[warmup:]) >= max(slow), fates.sensor


TWO_NETWORKS = '''
"""Two stages of torch, which say with how many threads they compute."""

import torch

from ridgeline.realtime.pipeline import Pipeline

torch.set_num_threads(2)


def threads(image):
    torch.relu(image)
    assert torch.get_num_threads() == {share}, torch.get_num_threads()
    return image


pipeline = Pipeline("twins", deadline="30s")
camera = pipeline.sensor("camera", lambda number: torch.ones(8), rate="100Hz")
first = pipeline.stage("first", threads, camera.via("unbounded"))
second = pipeline.stage("second", threads, camera.via("unbounded"))
'''


@pytest.fixture
def threads_put_back() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads_put_back")
@pytest.mark.parametrize(("executor", "share"), [("inline", 2), ("threads", 1), ("processes", 1)])
def test_stages_that_run_at_one_time_share_the_cores_among_torchs_threads(
    executor: str, share: int, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    import torch

    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    path = tmp_path / "pipeline.py"
    path.write_text(TWO_NETWORKS.format(share=share))
    words = [str(path), "--frames", "5", "--tight-frames", "0", "--executor", executor]
    found = report(words, capsys)
    assert [one["failed"] for one in found["sinks"]] == [0, 0], found["notes"]
    assert torch.get_num_threads() == 2
    said = [note for note in found["notes"] if "share of the cores" in note]
    assert len(said) == (executor != "inline")


def test_a_run_is_observed_so_that_its_misses_can_be_blamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write_pipeline(tmp_path), tmp_path / "run.json"
    report([path, "--frames", "20", "--tight-frames", "0", "--out", str(out)], capsys)
    recorded = read_record(out, RealtimeRun)
    assert [len(calls.core_wait_seconds) for calls in recorded.calls] == [30, 30]
    assert recorded.page_fault_seconds is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--constant-stream", "--frames", "9999"], "takes 10000 frames or more"),
        (["--max-miss", "120%"], "'120%' is no share"),
        (["--p99-over-p50", "0.9"], "no tail is below its median"),
        (["--frames", "0"], "--frames 0: give 1 or more"),
        (["--deadline", "-1ms"], "-1ms"),
        (["--worst", "0"], "--worst 0"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_anything_runs(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pipeline(tmp_path, read="lambda number: 1 / 0")
    assert run(["realtime", "run", path, *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert said in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no pipeline;"),
        ("1 / 0", "division by zero"),
        ("from ridgeline.realtime.pipeline import Pipeline\np = Pipeline('p')", "has no sensor"),
        (
            "from ridgeline.realtime.pipeline import Pipeline\np = Pipeline('p', deadline='soon')",
            "'soon' is no duration",
        ),
    ],
)
def test_a_file_without_a_whole_pipeline_is_one_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pipeline.py").write_text(text)
    assert run(["realtime", "run", str(tmp_path / "pipeline.py")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert said in err


def test_a_pipeline_that_cannot_be_made_twice_keeps_its_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(write_pipeline(tmp_path))
    mark = tmp_path / "opened"
    path.write_text(path.read_text() + f"\nopen({str(mark)!r}, 'x').close()\n")
    found = report([str(path), "--frames", "20"], capsys)
    assert found["sinks"][0]["delivered"] == 20
    assert any(note.startswith("no tight loop: ") for note in found["notes"])


@pytest.mark.slow
def test_ctrl_c_shows_and_writes_the_frames_so_far(tmp_path: Path) -> None:
    path, out = write_pipeline(tmp_path), tmp_path / "run.json"
    code = "from ridgeline.cli.main import main; main()"
    words = ["realtime", "run", path, "--frames", "2000", "--out", str(out), "--json"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as child:  # fmt: skip
        assert child.stderr is not None
        while "of 2010 frames" not in child.stderr.readline():
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        text, _ = child.communicate(timeout=60)
    assert child.returncode == 130
    assert json.loads(text)["record"] == "realtime-report"
    recorded = read_record(out, RealtimeRun)
    assert recorded.interrupted
    assert 0 < len(recorded.fates[0].frames) < 2000


def test_budgets_of_stages_and_paths_are_a_gate_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(write_pipeline(tmp_path, slow=0.05))
    words = [str(path), "--frames", "40", "--tight-frames", "0", "--budgets"]
    kept = report(words, capsys)["gate"]
    assert kept["passed"]
    assert [(one["limit"], one["sink"], one["allowed"]) for one in kept["checks"]] == [
        ("stage-budget", "backbone", 1.0), ("path-budget", "camera -> backbone", 2.0)
    ]  # fmt: skip
    text = path.read_text()
    path.write_text(text.replace("detect, features)", 'detect, features, budget="20ms")'))
    assert run(["realtime", "run", *words]) == 3
    assert re.search(r"stage-budget at detect: \d", capsys.readouterr().err)
    path.write_text(text.replace("camera, features, budget", "camera, boxes, budget")
                    .replace('"2s"', '"20ms"'))  # fmt: skip
    assert run(["realtime", "run", *words]) == 3
    assert re.search(r"path-budget at camera -> detect: \d", capsys.readouterr().err)
    path.write_text("\n".join(line for line in text.replace(', budget="1s"', "").splitlines()
                              if "path(" not in line))  # fmt: skip
    assert run(["realtime", "run", *words]) == 2
    assert "--budgets: front declares none" in capsys.readouterr().err


TWO_SINKS = """
import time

from ridgeline.realtime.pipeline import Pipeline

pipeline = Pipeline("two")
camera = pipeline.sensor("camera", lambda number: number, rate="100Hz")
boxes = pipeline.stage("boxes", lambda frame: time.sleep(0.002), camera.via("unbounded"))
lanes = pipeline.stage("lanes", lambda frame: time.sleep({lanes}), camera.via("unbounded"))
"""


@pytest.mark.slow
@pytest.mark.alone
def test_two_runs_are_compared_at_every_sink(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipeline.py"
    files = []
    for lanes in ("0.002", "0.05"):
        path.write_text(TWO_SINKS.format(lanes=lanes))
        files.append(str(tmp_path / f"{lanes}.json"))
        words = ["realtime", "run", str(path), "--frames", "40", "--tight-frames", "0"]
        assert run([*words, "--executor", "threads", "--out", files[-1]]) == 0
    capsys.readouterr()
    assert run(["compare", *files]) == 3
    out, err = capsys.readouterr()
    assert "sink lanes" in err
    assert "lanes, which decides" in out
    assert run(["compare", *files, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["part"] == "lanes"
    verdicts = {one["name"]: one["verdict"] for one in found["parts"]}
    assert verdicts["lanes"] == "slower"
    assert sorted(verdicts) == ["boxes", "lanes"]
    path.write_text(TWO_SINKS.format(lanes="1 / 0"))
    words = ["realtime", "run", str(path), "--frames", "40", "--tight-frames", "0"]
    assert run([*words, "--out", str(tmp_path / "silent.json")]) == 0
    capsys.readouterr()
    assert run(["compare", files[0], str(tmp_path / "silent.json")]) == 2
    assert "no frame of lanes was timed" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.alone
def test_two_runs_are_compared_by_their_tail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, slow in (("calm", 0.0), ("slow", 0.1)):
        path = write_pipeline(tmp_path, slow=slow)
        out = str(tmp_path / f"{name}.json")
        words = ["realtime", "run", path, "--frames", "60", "--tight-frames", "0", "--out", out]
        assert run(words) == 0
    capsys.readouterr()
    files = [str(tmp_path / "calm.json"), str(tmp_path / "slow.json")]
    assert run(["compare", *files, "--metric", "mean"]) == 3
    assert "detect takes" in capsys.readouterr().err


def test_a_camera_that_takes_no_number_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pipeline(tmp_path, read="iter(range(1000)).__next__")
    found = report([path, "--frames", "10", "--warmup", "1", "--tight-frames", "0"], capsys)
    assert found["sinks"][0]["delivered"] == 10


def test_a_run_of_which_nothing_comes_out_fails_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_pipeline(tmp_path, read="lambda number: 1 / 0")
    assert run(["realtime", "run", path, "--frames", "10", "--tight-frames", "0"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert "not one frame came through: camera: raised: ZeroDivisionError: division" in line


def test_a_pipeline_that_was_edited_within_the_second_is_read_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--frames", "2", "--warmup", "0", "--tight-frames", "0"]
    stages = []
    for name in ("one", "two"):
        path = Path(write_pipeline(tmp_path))
        path.write_text(path.read_text().replace('"detect"', f'"{name}"'))
        os.utime(path, (1e9, 1e9))
        stages.append(report([str(path), *words], capsys)["stages"][-1]["stage"])
    assert stages == ["one", "two"]
    assert not (tmp_path / "__pycache__").exists()
