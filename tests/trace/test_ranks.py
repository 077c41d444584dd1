"""Ranks as one job: who is last, what is transfer, and clocks that differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.written import call, kernel, read_kineto, write

from ridgeline.cli.main import run
from ridgeline.trace.communication.matching import align_ranks, rank_collectives
from ridgeline.trace.communication.stragglers import Stragglers, stragglers
from ridgeline.trace.load import load_traces


def told(
    folder: Path, arrivals: list[list[float]], clocks: list[float], **args: object
) -> Stragglers:
    """All-reduces of several ranks; each ends 10 µs after its last arrival."""
    ranks = []
    for rank, clock in enumerate(clocks):
        events = []
        for one in arrivals:
            end = max(one) + 10
            events.append(
                kernel(clock + one[rank], end - one[rank], name="ncclDevKernel_AllReduce", **args)
            )
        extra = {"distributedInfo": {"rank": rank, "world_size": len(clocks) + 1}}
        path = write(folder / f"rank{rank}.json", events, **extra)
        ranks.append(rank_collectives(read_kineto(path)))
    return stragglers(ranks)


def test_the_published_job_gives_its_published_figures(real_traces: Path) -> None:
    traces = load_traces(real_traces / "v100_dlrm_8rank_nccl")
    found = stragglers([rank_collectives(trace) for trace in traces])
    assert found.matched == 8
    assert found.transfer_us == 225
    assert {row.rank: row.last_arrivals for row in found.ranks if row.last_arrivals} == {
        7: 5, 5: 2, 4: 1,
    }  # fmt: skip
    assert max(row.communication_us for row in found.ranks) == pytest.approx(11336, abs=1)
    assert found.worst_rank == 7
    assert found.missing_ranks == []


arrivals = st.lists(
    st.lists(st.integers(0, 300), min_size=3, max_size=3, unique=True), min_size=3, max_size=8
)


@given(arrivals, st.lists(st.sampled_from([0, 5000, -70000, 12]), min_size=2, max_size=2))
@settings(max_examples=40, deadline=None)
def test_waits_are_exact_whatever_the_clocks_say(
    tmp_path_factory: pytest.TempPathFactory, given_arrivals: list[list[int]], clocks: list[int]
) -> None:
    laid_out = [
        [1_000_000 + 1000.0 * number + offset for offset in one]
        for number, one in enumerate(given_arrivals)
    ]
    small = [clock if abs(clock) > 50 else 0 for clock in clocks]
    found = told(tmp_path_factory.mktemp("t"), laid_out, [0, *small])
    assert found.matched == len(laid_out)
    assert found.transfer_us == pytest.approx(10 * len(laid_out), abs=0.01)
    assert found.waited_us == pytest.approx(
        sum(max(one) - value for one in laid_out for value in one), abs=0.01
    )
    late = {row.rank: row.last_arrivals for row in found.ranks}
    for rank in range(3):
        assert late[rank] == sum(one.index(max(one)) == rank for one in laid_out)


def test_missing_ranks_are_said(tmp_path: Path) -> None:
    found = told(tmp_path, [[0.0, 50.0]], [0.0, 0.0])
    assert found.missing_ranks == [2]
    assert any("1 of 3 ranks are not here (2)" in warning for warning in found.warnings)


def test_a_rank_that_saw_more_is_matched_where_it_overlaps(tmp_path: Path) -> None:
    ends = [1000.0 * number + 37 * number**2 for number in range(1, 9)]
    ranks = []
    for rank, seen in enumerate((ends, ends[3:])):
        events = [kernel(end - 20 - rank, 20 + rank, name="ncclAllReduce") for end in seen]
        ranks.append(rank_collectives(read_kineto(write(tmp_path / f"r{rank}.json", events))))
    whole = align_ranks(ranks)
    assert len(whole.matched) == 5
    assert whole.clock_offset_us == (0.0, 0.0)
    assert all(one.end_us[0] == one.end_us[1] for one in whole.matched)


def test_what_does_not_end_together_is_not_matched(tmp_path: Path) -> None:
    ranks = []
    for rank, ends in enumerate(([1e5, 2e5, 3e5], [1.4e5, 2.9e5, 3.1e5])):
        events = [kernel(end - 50, 50, name="ncclDevKernel_SendRecv") for end in ends]
        ranks.append(rank_collectives(read_kineto(write(tmp_path / f"r{rank}.json", events))))
    found = stragglers(ranks)
    assert found.matched < 3
    assert any("do not end together" in warning for warning in found.warnings)


def test_ranks_that_leave_before_others_come_do_not_wait_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Halves of an exchange by DeepEP: one puts data, and one that comes later fetches them."""
    for rank in (0, 1):
        events = []
        for number in range(40):
            at = 1000.0 * number + (250 if (number + rank) % 2 else 0)
            events.append(call(at - 30, 5, 2 * number + 1))
            events.append(kernel(at, 600, correlation=2 * number + 1))
            events.append(call(at - 20, 5, 2 * number + 2))
            send = "void deep_ep::internode_ll::combine<3, 10, 7168, 9>(void*)"
            events.append(kernel(at + 600, 100, correlation=2 * number + 2, name=send))
        extra = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
        write(tmp_path / f"rank{rank}.json", events, **extra)
    assert run(["trace", "summary", "--json", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)["verdict"]
    assert "rank-skew" not in [finding["cause"] for finding in found]
    assert not any("late ranks" in finding["summary"] for finding in found)
    assert run(["trace", "stragglers", "--json", str(tmp_path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["matched"], answer["waited_us"]) == (0, 0)
    assert any("without waiting for everybody" in warning for warning in answer["warnings"])


def test_sizes_give_bandwidth_by_transfer_and_a_histogram(tmp_path: Path) -> None:
    size = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20,
            "dtype": "Float", "Group size": 2}  # fmt: skip
    found = told(tmp_path, [[0.0, 190.0]], [0.0, 0.0], **size)
    (row,) = found.collectives
    assert row.bytes == 4 << 20
    assert row.algorithm_bytes_per_second == pytest.approx((4 << 20) / 10e-6)
    assert row.bus_bytes_per_second == row.algorithm_bytes_per_second, "2(n-1)/n is 1 for two"
    assert found.message_histogram == {str(4 << 20): 1}


def test_a_verdict_on_some_ranks_of_a_job_says_which_are_not_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first of those that are here comes last; one that is not may come later still."""
    for rank in (0, 1, 3):
        late, events = 6000.0 if rank == 0 else 0.0, []
        for number in range(1, 9):
            start, end = 10_000.0 * number + late, 10_000.0 * number + 7000
            events.append(call(end - 10_000, 5, 2 * number))
            events.append(kernel(end - 9990, start - end + 9990, correlation=2 * number))
            events.append(call(end - 9980, 5, 2 * number + 1))
            events.append(
                kernel(start, end - start, correlation=2 * number + 1, name="ncclAllReduce")
            )
        extra = {"distributedInfo": {"rank": rank, "world_size": 4}}
        write(tmp_path / f"rank{rank}.json", events, **extra)
    assert run(["trace", "summary", "--json", str(tmp_path)]) == 0
    first = json.loads(capsys.readouterr().out)["verdict"][0]
    assert first["cause"] == "rank-skew"
    assert "1 are not here (2)" in first["summary"]
    assert first["confidence"] <= 0.65
