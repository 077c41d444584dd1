"""Ranks that a tool joined into one file, told apart as though each had its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trace.simulated.kineto import write_run
from tests.trace.simulated.run import simulate
from tests.trace.simulated.truth import cases
from tests.trace.written import call, host, kernel, write

from ridgeline.cli.main import run
from ridgeline.trace.load import load_traces

Events = list[dict[str, Any]]
_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files of a job whose second rank has a slow host."""
    case = cases()["ddp-late-host"]
    folder = tmp_path_factory.mktemp("ranks")
    return write_run(simulate(case.program(), case.seed), folder, case.schema())


def beside_each_other(events: Events, rank: int) -> Events:
    """As they were: the processes differ, and so do the GPUs."""
    return events


def with_labels(events: Events, rank: int) -> Events:
    """As SGLang's merger does, on hosts of one GPU each."""
    for event in events:
        event["pid"] = f"[TP{rank:02d}] {event.get('pid')}"
        if "device" in event.get("args", {}):
            event["args"]["device"] = 0
    return events


def with_numbers(events: Events, rank: int) -> Events:
    """As TraceLens does."""
    for event in events:
        if isinstance(event.get("pid"), int):
            event["pid"] += rank * 100_000_000
        event.setdefault("args", {})["rank"] = rank
        if "correlation" in event["args"]:
            event["args"]["correlation"] += rank * 10_000_000
    return events


def joined(paths: list[Path], into: Path, change: Callable[[Events, int], Events]) -> Path:
    documents = [json.loads(path.read_text()) for path in paths]
    events = [
        event
        for rank, document in enumerate(documents)
        for event in change(document["traceEvents"], rank)
    ]
    into.write_text(json.dumps({**documents[0], "traceEvents": events}))
    return into


def asked(capsys: pytest.CaptureFixture[str], word: str, *paths: Path) -> dict[str, Any]:
    assert run(["trace", word, "--json", *map(str, paths)]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("change", [beside_each_other, with_labels, with_numbers])
def test_a_joined_file_is_judged_as_the_files_that_it_is_of(
    change: Callable[[Events, int], Events],
    ranks: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = joined(ranks, tmp_path / "job.json", change)
    apart, together = (asked(capsys, "summary", *paths) for paths in (ranks, [one]))
    assert together["verdict"][0]["cause"] == "rank-skew"
    for right, found in zip(apart["verdict"], together["verdict"], strict=True):
        assert found["cause"] == right["cause"]
        assert found["worth_us"] == pytest.approx(right["worth_us"])
    for right, found in zip(apart["ranks"], together["ranks"], strict=True):
        assert found["rank"] == right["rank"]
        assert found["busy_us"] == pytest.approx(right["busy_us"])
        assert found["window_us"] == pytest.approx(right["window_us"])
    late = asked(capsys, "stragglers", one)
    assert late["ranks"][0]["rank"] == asked(capsys, "stragglers", *ranks)["ranks"][0]["rank"]


def test_an_export_of_a_joined_file_is_read_back_as_its_ranks(
    ranks: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = joined(ranks, tmp_path / "job.json", with_labels)
    out = tmp_path / "out.json"
    assert run(["trace", "export", str(one), "--out", str(out)]) == 0
    capsys.readouterr()
    before, after = (asked(capsys, "summary", path) for path in (one, out))
    for right, found in zip(before["ranks"], after["ranks"], strict=True):
        assert (found["rank"], found["busy_us"]) == (right["rank"], pytest.approx(right["busy_us"]))
    assert after["verdict"][0]["cause"] == before["verdict"][0]["cause"]


def test_lanes_of_collectives_alone_are_a_rank_each(ranks: list[Path], tmp_path: Path) -> None:
    def of_collectives(events: Events, rank: int) -> Events:
        talk = [event for event in events if "Collective name" in event.get("args", {})]
        return with_numbers(talk, rank)

    found = load_traces(joined(ranks, tmp_path / "job.json", of_collectives))
    assert [trace.rank for trace in found] == list(range(len(ranks)))
    assert all(len(trace.gpu) for trace in found)


def of_one_process(device: int, correlation: int) -> Events:
    return [call(10, 5, correlation), kernel(30, 50, correlation=correlation, device=device)]


@pytest.mark.parametrize("process", [None, 300_000_001, "GPU 1"])
def test_two_gpus_of_one_process_stay_one_rank(process: int | str | None, tmp_path: Path) -> None:
    """Whatever number the work of one of them is shown below."""
    events = [host(0, 90, "aten::mm"), *of_one_process(0, 1), *of_one_process(1, 2)]
    if process is not None:
        events[-1]["pid"] = process
    (trace,) = load_traces(write(tmp_path / "t.json", events))
    assert sorted(trace.gpu.device.tolist()) == [0, 1]
    assert trace.rank is None


def test_a_process_that_launches_nothing_belongs_to_the_rank_before_it(tmp_path: Path) -> None:
    """A loader's, in the file of the second of two ranks; their correlations are the same."""

    def rank(process: int, device: int, later: float) -> Events:
        own = [host(later, 90, "aten::mm"), call(later + 10, 5, 1)]
        work = kernel(later + 30, 50, correlation=1, device=device)
        return [*({**event, "pid": process} for event in own), work]

    events = [*rank(71, 0, 0), *rank(72, 1, 500), {**host(600, 9, "fetch"), "pid": 73}]
    found = load_traces(write(tmp_path / "t.json", events))
    assert [trace.gpu.device.tolist() for trace in found] == [[0], [1]]
    names = [{trace.names[name] for name in trace.host.name} for trace in found]
    assert ["fetch" in known for known in names] == [False, True]
    assert "2 ranks are joined in this file" in found[0].warnings[0]
