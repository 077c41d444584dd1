"""Steps that no ProfilerStep marks: numbered ranges of the user's, and questions about many."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trace.test_memory_growth import MB, Allocator
from tests.trace.written import call, host, kernel, step, write

from ridgeline.cli.main import run

Asked = Callable[..., dict[str, Any]]


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    """A command's answer about a trace of these events."""

    def ask(word: str, events: list[dict[str, Any]], *arguments: str) -> dict[str, Any]:
        path = write(tmp_path / "rank0.json", events)
        assert run(["trace", word, str(path), "--json", *arguments]) == 0
        (rank,) = json.loads(capsys.readouterr().out)["ranks"]
        found: dict[str, Any] = rank
        return found

    return ask


def turn(start: float, length: float, name: str, tid: int = 1) -> dict[str, Any]:
    return host(start, length, name, "user_annotation", tid)


def loop(name: str, lengths: list[float], *, apart: float = 0.0) -> list[dict[str, Any]]:
    """Iterations one after the other, each with a kernel of half of its length."""
    events: list[dict[str, Any]] = []
    start = 0.0
    for number, length in enumerate(lengths):
        events += [
            turn(start, length, name.format(number)),
            call(start, 2, number + 1),
            kernel(start + 5, length / 2, correlation=number + 1),
        ]
        start += length + apart
    return events


@pytest.mark.parametrize("name", ["iter {}", "step_{}", "sample_{}", "train_step[{}]", "Batch #{}"])
def test_numbered_iterations_are_steps(asked: Asked, name: str) -> None:
    rank = asked("steps", loop(name, [100.0, 100.0, 140.0, 100.0], apart=10))
    assert [one["number"] for one in rank["steps"]] == [0, 1, 2, 3]
    assert [one["length_us"] for one in rank["steps"]] == [110, 110, 150, 100]
    assert rank["called"] == name.format(0)
    assert rank["median_us"] == 110


@pytest.mark.parametrize(
    "name", ["layer_{}", "micro_batch {}", "rank {}", "iter", "conv{}x", "execute_generation_{}(0)"]
)
def test_other_ranges_are_no_steps(asked: Asked, name: str) -> None:
    assert asked("steps", loop(name, [100.0] * 4))["steps"] == []


def test_ranges_that_fill_little_of_the_time_are_no_steps(asked: Asked) -> None:
    assert asked("steps", loop("iter {}", [10.0] * 4, apart=90))["steps"] == []


def test_numbers_that_begin_anew_are_parts_of_something_else(asked: Asked) -> None:
    """Decoding steps of each sample: the samples are the steps."""
    inner = [
        turn(sample * 100 + number * 25, 25, f"decode_step_{number}")
        for sample in range(3)
        for number in range(4)
    ]
    rank = asked("steps", [*loop("sample_{}", [100.0] * 3), *inner])
    assert [one["length_us"] for one in rank["steps"]] == [100, 100, 100]


def test_a_profiler_step_goes_before_a_user_s_own_iterations(asked: Asked) -> None:
    rank = asked("steps", [step(0, 200, 7), step(200, 200, 8), *loop("iter {}", [100.0] * 4)])
    assert rank["called"] == "ProfilerStep#7"
    assert len(rank["steps"]) == 2


WITH_WINDOWS = ("summary", "idle", "kernels", "overlap", "launch", "sync", "operators", "modules")


@pytest.mark.parametrize("word", WITH_WINDOWS)
def test_the_step_window_is_that_of_the_iterations(asked: Asked, word: str) -> None:
    rank = asked(word, loop("iter {}", [100.0] * 4), "--window", "steps")
    assert rank["window"] == "steps"
    assert rank.get("window_us", 300) == 300


def test_memory_of_whole_iterations_leaves_out_what_lies_around_them(asked: Asked) -> None:
    memory = Allocator(0)
    memory.change(10, 500 * MB, 1)  # before the first iteration: loading the model
    memory.change(20, -400 * MB, 1)
    for number in range(4):
        memory.change(1010 + number * 100, 8 * MB, 2 + number)
        memory.change(1060 + number * 100, -8 * MB, 2 + number)
    memory.change(1395, 300 * MB, 99)  # in the last iteration, whose end is not known
    turns = [turn(1000 + number * 100, 100, f"iter {number}") for number in range(4)]
    (whole,) = asked("memory", [*turns, *memory.events])["devices"]
    assert whole["peak_bytes"] == 500 * MB
    rank = asked("memory", [*turns, *memory.events], "--window", "steps")
    (device,) = rank["devices"]
    assert (rank["window"], device["events"]) == ("steps", 6)
    assert (device["start_bytes"], device["peak_bytes"]) == (100 * MB, 108 * MB)
    assert device["growth"] == whole["growth"]
    assert len(device["growth"]["steps"]) == 4


def test_a_snapshot_has_no_step_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pickle

    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    assert run(["trace", "memory", str(path), "--window", "steps"]) == 2
    assert "memory snapshot, without steps" in capsys.readouterr().err


def test_iterations_of_nvtx_are_steps_of_an_nsight_export(
    real_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = real_traces / "nsys_2gpu" / "mfu_2gpu_before.sqlite"
    path = tmp_path / "numbered.sqlite"
    path.write_bytes(source.read_bytes())
    with sqlite3.connect(path) as base:
        processes = base.execute(
            "SELECT MIN(start), MAX(end), MIN(globalTid) FROM CUPTI_ACTIVITY_KIND_RUNTIME"
            " GROUP BY globalTid / 0x1000000"
        ).fetchall()
        lengths = [(end - begin) // 6 for begin, end, _ in processes]
        base.executemany(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) VALUES (?,?,59,?,?)",
            [
                (begin + number * length, begin + (number + 1) * length, f"iter {number}", thread)
                for (begin, _, thread), length in zip(processes, lengths, strict=True)
                for number in range(6)
            ],
        )
    base.close()
    assert run(["trace", "summary", str(path), "--window", "steps", "--json"]) == 0
    ranks = json.loads(capsys.readouterr().out)["ranks"]
    assert [rank["steps"] for rank in ranks] == [6, 6]
    windows = sorted(rank["window_us"] for rank in ranks)
    assert windows == pytest.approx(sorted(5 * length / 1000 for length in lengths))


def many_steps() -> list[dict[str, Any]]:
    lengths = [100.0 + place % 5 for place in range(257)]
    lengths[40], lengths[90] = 400.0, 900.0
    return loop("iter {}", lengths)


def test_many_steps_are_told_as_quartiles_and_outliers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "rank0.json", many_steps())
    assert run(["trace", "steps", str(path)]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) < 25
    rows = [line.split() for line in shown.splitlines()]
    assert ["length", "100", "µs", "101", "µs", "102", "µs", "103", "µs", "900", "µs"] in rows
    assert [row[:3] for row in rows if row[-1:] == ["outlier"]] == [
        ["90", "900", "µs"],
        ["40", "400", "µs"],
    ]


def test_json_has_every_step_and_the_quartiles(asked: Asked) -> None:
    rank = asked("steps", many_steps())
    assert len(rank["steps"]) == 257
    length = next(one for one in rank["quartiles"] if one["name"] == "length")
    assert length == {"name": "length", "min_us": 100, "lower_us": 101, "median_us": 102,
                      "upper_us": 103, "max_us": 900}  # fmt: skip
