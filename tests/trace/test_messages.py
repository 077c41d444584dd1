"""Messages between two ranks: who is late in a pipeline or a ring, and what a bubble costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.trace.simulated.kineto import write_run
from tests.trace.simulated.run import simulate
from tests.trace.simulated.truth import Case, cases, truth_of
from tests.trace.written import kernel, read_kineto, write

from ridgeline.cli.main import run
from ridgeline.trace.communication.matching import align_ranks, rank_collectives

PIPELINE = Case(workload="pipeline", gpu="h100", faults={"late-gpu": 0.8},
                options={"ranks": 3, "passes": 8, "steps": 2, "layers": 3})  # fmt: skip


def verdict(capsys: pytest.CaptureFixture[str], *paths: Path) -> list[dict[str, object]]:
    assert run(["trace", "summary", "--json", *map(str, paths)]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["verdict"]
    return found


@pytest.mark.parametrize("version", ["new", "plain"])
def test_a_slow_stage_is_worth_what_the_pipeline_gains_without_its_excess(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: str
) -> None:
    """The peers stand in the arguments of kernels, or in the ranges around their launches."""
    case = replace(PIPELINE, version=version)
    made = simulate(case.program(), case.seed)
    write_run(made, tmp_path, case.schema())
    first = verdict(capsys, tmp_path)[0]
    assert first["cause"] == "rank-skew"
    assert first["where"] == ["rank 2"]
    assert float(str(first["worth_us"])) == pytest.approx(truth_of(case, made).worth_us, rel=0.1)


def test_recorded_waits_find_what_was_launched_before_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, int | bool | str] = {"ranks": 2, "passes": 16, "steps": 2, "layers": 2}
    case = replace(PIPELINE, warm=2, syncs=True, options=options)
    made = simulate(case.program(), case.seed)
    write_run(made, tmp_path, case.schema())
    worth = verdict(capsys, tmp_path)[0]["worth_us"]
    assert float(str(worth)) == pytest.approx(truth_of(case, made).worth_us, rel=0.1)


RING = Case(workload="ring", gpu="v100", version="old", shapes=False, faults={"late-host": 1.8},
            options={"ranks": 3, "steps": 4}, warm=2)  # fmt: skip


def test_a_late_host_of_a_ring_is_worth_what_others_wait_before_its_record_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its profiler starts as late as its step does, and messages queued before have no range."""
    made = simulate(RING.program(), RING.seed)
    write_run(made, tmp_path, RING.schema())
    first = verdict(capsys, tmp_path)[0]
    assert (first["cause"], first["where"]) == ("rank-skew", ["rank 2"])
    assert float(str(first["worth_us"])) == pytest.approx(truth_of(RING, made).worth_us, rel=0.25)


def test_a_send_and_a_receive_beside_each_other_wait_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = replace(RING, faults={"late-host": 2.4}, options={"ranks": 2}, warm=0)
    write_run(simulate(case.program(), case.seed), tmp_path, case.schema())
    first = verdict(capsys, tmp_path)[0]
    assert first["cause"] == "rank-skew"
    share = dict(first["evidence"])["skew_wait_share_of_communication"]  # type: ignore[call-overload]
    assert 0.5 < share < 1
    assert run(["trace", "stragglers", "--json", str(tmp_path)]) == 0
    for rank in json.loads(capsys.readouterr().out)["ranks"]:
        assert rank["skew_wait_us"] <= rank["communication_us"]


def test_what_makes_one_rank_late_is_not_counted_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All hosts prepare their inputs, and one of them does much more beside."""
    case = replace(RING, faults={"late-host": 1.4, "prepare": 0.5}, warm=0)
    made = simulate(case.program(), case.seed)
    write_run(made, tmp_path, case.schema())
    worth = {str(one["cause"]): float(str(one["worth_us"])) for one in verdict(capsys, tmp_path)}
    truth = truth_of(case, made).by_cause
    assert next(iter(worth)) == "rank-skew"
    assert worth["rank-skew"] == pytest.approx(truth["rank-skew"], rel=0.25)
    assert worth["host-bound"] <= 1.25 * truth["host-bound"]


def test_a_rank_that_alone_waits_for_its_loader_is_late_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = replace(RING, version="new", stacks=True, warm=0)
    late = write_run(simulate(case.program(), case.seed), tmp_path, case.schema())[-1]
    written = json.loads(late.read_text())
    for event in written["traceEvents"]:
        if "build_targets" in event["name"]:
            event["name"] = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            event["cat"] = "user_annotation"
    late.write_text(json.dumps(written))
    first = verdict(capsys, tmp_path)[0]
    assert first["cause"] == "rank-skew"
    assert first["evidence"]["late_by"] == "loader"  # type: ignore[index]


def test_messages_of_before_the_trace_are_known_by_their_streams(tmp_path: Path) -> None:
    write_run(simulate(RING.program(), RING.seed), tmp_path, RING.schema())
    for path in sorted(tmp_path.iterdir()):
        found = rank_collectives(read_kineto(path))
        assert None not in found.messages


@pytest.mark.parametrize("rank", [0, 1])
def test_one_stage_alone_only_guesses_for_whom_it_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    paths = write_run(simulate(PIPELINE.program(), 1), tmp_path, PIPELINE.schema())
    first = verdict(capsys, paths[rank])[0]
    assert float(str(first["confidence"])) <= 0.5
    assert "slow peer" in str(first["summary"])


def test_a_pipeline_of_few_micro_batches_has_a_bubble(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, int | bool | str] = {"ranks": 2, "passes": 16, "steps": 2, "layers": 2}
    case = replace(PIPELINE, faults={"few-passes": 8}, options=options)
    made = simulate(case.program(), case.seed)
    write_run(made, tmp_path, case.schema())
    first = verdict(capsys, tmp_path)[0]
    assert first["cause"] == "pipeline-bubble"
    assert float(str(first["worth_us"])) == pytest.approx(truth_of(case, made).worth_us, rel=0.25)


def exchanged(
    folder: Path, sent: list[tuple[float, float]], got: list[tuple[float, float]]
) -> Path:
    """Messages of rank 0 to rank 1, as (start, end) on either side."""
    for rank, (name, peer, spans) in enumerate(
        (("send", {"Dst Rank": 1}, sent), ("recv", {"Src Rank": 0}, got))
    ):
        args = {"Collective name": name, "Process Group Ranks": "[0, 1, 2]", **peer}
        events = [
            kernel(start, end - start, name="ncclDevKernel_SendRecv", **args)
            for start, end in spans
        ]
        extra = {"distributedInfo": {"rank": rank, "world_size": 2}}
        write(folder / f"rank{rank}.json", events, **extra)
    return folder


def test_a_message_that_is_sent_before_the_receiver_comes_makes_only_it_wait(
    tmp_path: Path,
) -> None:
    exchanged(tmp_path, [(0, 20), (100, 190)], [(50, 60), (80, 190)])
    ranks = [rank_collectives(read_kineto(path)) for path in sorted(tmp_path.iterdir())]
    early, late = align_ranks(ranks).matched
    assert early.wait_us.tolist() == [20, 0]
    assert late.wait_us.tolist() == [0, 20]
    assert late.is_message


def test_messages_of_which_one_side_saw_more_are_laid_over_each_other(tmp_path: Path) -> None:
    spans = [(1000.0 * n + 30 * n**2, 1000.0 * n + 30 * n**2 + 40) for n in range(1, 7)]
    exchanged(tmp_path, spans, spans[2:])
    ranks = [rank_collectives(read_kineto(path)) for path in sorted(tmp_path.iterdir())]
    found = align_ranks(ranks)
    assert len(found.matched) == 4
    assert all(one.end_us[0] == one.end_us[1] for one in found.matched)


def test_what_seems_received_before_it_was_sent_is_said(tmp_path: Path) -> None:
    exchanged(tmp_path, [(100, 120)], [(0, 50)])
    ranks = [rank_collectives(read_kineto(path)) for path in sorted(tmp_path.iterdir())]
    found = align_ranks(ranks)
    assert not found.matched
    assert any("before they were sent" in warning for warning in found.warnings)


def test_a_loader_hidden_by_waits_for_other_ranks_is_worth_what_all_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of four ranks stand in collectives while their hosts load: it is theirs as well."""
    case = cases()["dlrm_ranks-no-overlap-slow-loader-s1-48"]
    made = simulate(case.program(), case.seed)
    write_run(made, tmp_path, case.schema())
    first = verdict(capsys, tmp_path)[0]
    assert first["cause"] == "input-bound"
    assert float(str(first["worth_us"])) == pytest.approx(truth_of(case, made).worth_us, rel=0.25)
