"""The trace of frames, as a tool for Chrome's traces would read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.realtime.recorded import STAGES, recorded_run

from ridgeline.cli.main import run as ridgeline
from ridgeline.realtime.frame_trace import write_frame_trace
from ridgeline.records.realtime_run import Collection, Interference, RealtimeRun


def written(run: RealtimeRun, folder: Path) -> list[dict[str, Any]]:
    path = folder / "frames.json"
    write_frame_trace(path, run)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def test_every_call_stands_on_the_track_of_its_stage(tmp_path: Path) -> None:
    run = recorded_run(30, slow={7: 0.03})
    events = written(run, tmp_path)
    tracks = {
        (one["pid"], one["tid"]): one["args"]["name"]
        for one in events
        if one["name"] == "thread_name"
    }
    calls = [one for one in events if one.get("cat") == "realtime stage"]
    assert len(calls) == 30 * len(STAGES)
    assert all(tracks[one["pid"], one["tid"]] == one["name"] for one in calls)
    slow = next(one for one in calls if one["name"] == "detect" and one["args"]["frame"] == 7)
    assert slow["dur"] == pytest.approx(1e6 * (run.calls[1].ended[7] - run.calls[1].started[7]))
    assert slow["ts"] == pytest.approx(1e6 * run.calls[1].started[7], abs=0.01)


def test_every_frame_is_tied_from_stamp_to_fate_and_through_its_calls(tmp_path: Path) -> None:
    events = written(recorded_run(30, slow={7: 0.03}, dropped=[9], failed=[11]), tmp_path)
    begun = [one for one in events if one["ph"] == "b"]
    assert sorted(one["id"] for one in begun) == sorted(
        one["id"] for one in events if one["ph"] == "e"
    )
    assert [one["name"] for one in begun if "delivered" not in one["name"]] == [
        "frame 7: late", "frame 9: dropped", "frame 11: failed",
    ]  # fmt: skip
    marks = [one["name"] for one in events if one["ph"] == "i"]
    assert marks == [
        "deadline of frame 7",
        "frame 9 dropped at camera -> backbone: oldest",
        "frame 11 failed at backbone: raised ValueError: no boxes",
    ]
    arrows = [one["ph"] for one in events if one.get("id") == "camera.3" and one["ph"] in "stf"]
    assert arrows == ["s", "t", "f"]


def test_collections_and_other_processes_stand_beside_the_stages(tmp_path: Path) -> None:
    run = msgspec.structs.replace(
        recorded_run(5),
        collections=[Collection(started=0.01, ended=0.02, generation=2, thread="detect")],
        interference=[
            Interference(started=0.0, ended=0.1, process="hog (7)", cpu_seconds=0.09, core=1)
        ],
    )
    beside = {one["name"]: one for one in written(run, tmp_path) if one.get("pid") == 3}
    assert beside["generation 2"]["dur"] == pytest.approx(1e4)
    assert beside["hog (7)"]["args"] == {"cpu_us": 90000.0, "core": 1}


def test_ridgeline_trace_says_what_the_file_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(recorded_run(30), tmp_path)
    assert ridgeline(["trace", "summary", str(tmp_path / "frames.json")]) == 2
    assert "a trace of frames by ridgeline realtime run" in capsys.readouterr().err
