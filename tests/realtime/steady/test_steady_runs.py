"""`ridgeline realtime run --steady`: what was asked of the system stands in the report."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import msgspec
import pytest

from ridgeline.cli.main import run
from ridgeline.realtime.steady.collector import SLACK
from ridgeline.records.realtime_run import RealtimeRun

PIPELINE = """
from ridgeline.realtime.pipeline import Pipeline

def detect(number):
    for _ in range(1500):
        cycle = []
        cycle.append(cycle)
    return number

pipeline = Pipeline("cameras", deadline="50ms")
camera = pipeline.sensor("camera", lambda number: number, rate="100Hz")
pipeline.stage("track", lambda found: found, pipeline.stage("detect", detect, camera))
"""


def recorded(folder: Path, *options: str) -> RealtimeRun:
    (folder / "pipeline.py").write_text(PIPELINE)
    out = folder / "run.json"
    words = [
        "realtime",
        "run",
        str(folder / "pipeline.py"),
        "--frames",
        "40",
        "--tight-frames",
        "0",
    ]
    assert run([*words, *options, "--out", str(out)]) == 0
    return msgspec.json.decode(out.read_bytes(), type=RealtimeRun)


@pytest.mark.sweep("threads")
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_the_report_says_what_was_granted_and_the_process_is_left_as_it_was(
    executor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = gc.get_threshold(), os.sched_getscheduler(0), os.sched_getaffinity(0)
    found = recorded(tmp_path, "--executor", executor, "--steady")
    assert (gc.get_threshold(), os.sched_getscheduler(0), os.sched_getaffinity(0)) == before
    names = {one.name for one in found.steady}
    assert names >= {"affinity", "fifo", "gc", "memory lock", "wake-up", "real-time throttle"}
    out, _ = capsys.readouterr()
    assert "memory lock" in out
    assert "between frames" in next(one.detail for one in found.steady if one.name == "gc")


def test_frames_are_not_interrupted_where_the_collector_has_slack(tmp_path: Path) -> None:
    default, steady = recorded(tmp_path), recorded(tmp_path, "--steady")
    assert not default.steady
    assert {one.thread for one in steady.collections} == {SLACK}, "too few for the backstop"
    spans = [
        (start, end) for calls in steady.calls
        for start, end in zip(calls.started, calls.ended, strict=True)
    ]  # fmt: skip
    inside = [
        one for one in steady.collections
        if any(start < one.ended and one.started < end for start, end in spans)
    ]  # fmt: skip
    assert not inside
    assert steady.collections[6:]  # the first six are of the start and of the warm-up
