"""`ridgeline trace queue`: how much launched work waits on each stream, over time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.trace.written import call, kernel, step, write

from ridgeline.cli.main import run


def test_the_series_is_launches_minus_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [
        *(call(at, 1, at + 1) for at in (0, 100, 200)),
        *(kernel(900 + 100 * place, 100, correlation=100 * place + 1) for place in range(3)),
    ]
    path = str(write(tmp_path / "rank0.json", events))
    assert run(["trace", "queue", path, "--json"]) == 0
    ((queue,),) = (rank["queues"] for rank in json.loads(capsys.readouterr().out)["ranks"])
    assert (queue["start_us"], queue["interval_us"]) == (0, 10)
    means = [1] * 10 + [2] * 10 + [3] * 70 + [2] * 10 + [1] * 10 + [0] * 10
    assert queue["max_lengths"] == means
    assert queue["mean_lengths"] == pytest.approx(means)
    assert queue["mean_length"] == pytest.approx(sum(means) / 120)
    assert (queue["launches"], queue["max_length"], queue["full_us"]) == (3, 3, 0)
    assert run(["trace", "queue", path]) == 0
    shown = capsys.readouterr().out
    assert "▄▄▆▆▆██" in shown


def test_a_full_queue_is_time_in_which_the_host_is_blocked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1,100 launches in a row, and a first kernel that runs on while they wait."""
    many = 1100
    events = [call(place, 0.5, place + 1) for place in range(many)]
    events += [kernel(2000 + 10 * place, 10, correlation=place + 1) for place in range(many)]
    path = str(write(tmp_path / "rank0.json", events))
    assert run(["trace", "queue", path, "--json"]) == 0
    ((queue,),) = (rank["queues"] for rank in json.loads(capsys.readouterr().out)["ranks"])
    # From the 1,024th launch, at 1023, to the start that leaves 1,023.
    assert queue["full_us"] == pytest.approx(2000 + 10 * (many - 1024) - 1023)
    assert queue["max_length"] == many
    assert run(["trace", "queue", path]) == 0
    assert "13 % of the time with a full queue" in capsys.readouterr().out


def test_a_queue_that_grows_far_beyond_cuda_s_limit_has_another_one(
    real_traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """HIP: 1,840 launches wait at a time while the host goes on launching."""
    file = str(real_traces / "mi300x_ddp")
    assert run(["trace", "queue", file, "--json"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    longest = rank["queues"][0]
    assert (longest["max_length"], longest["full_us"]) == (1840, None)
    assert run(["trace", "queue", file]) == 0
    assert "is not known" in " ".join(capsys.readouterr().out.split())


def test_the_step_window_begins_with_what_already_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [
        step(100, 100, 1),
        step(200, 100, 2),
        *(call(at, 1, at + 1) for at in (0, 10)),
        *(kernel(150 + 30 * place, 20, correlation=10 * place + 1) for place in range(2)),
    ]
    path = str(write(tmp_path / "rank0.json", events))
    assert run(["trace", "queue", path, "--json", "--window", "steps"]) == 0
    ((queue,),) = (rank["queues"] for rank in json.loads(capsys.readouterr().out)["ranks"])
    assert (queue["start_us"], queue["max_lengths"][0]) == (100, 2)
    assert queue["mean_length"] == pytest.approx((50 * 2 + 30 * 1) / 100)


def test_a_real_queue_is_as_deep_as_its_statistics_say(
    real_traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = (real_traces / "a100_dlrm_16rank").glob("*.json.gz")
    answers = {}
    for word in ("queue", "launch"):
        assert run(["trace", word, str(file), "--json"]) == 0
        (rank,) = json.loads(capsys.readouterr().out)["ranks"]
        answers[word] = {queue["stream"]: queue for queue in rank["queues"]}
    assert answers["queue"].keys() == answers["launch"].keys()
    for stream, queue in answers["queue"].items():
        assert queue["max_length"] == answers["launch"][stream]["max_depth"]
        assert queue["max_length"] == max(queue["max_lengths"])
