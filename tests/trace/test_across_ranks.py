"""`ridgeline trace ranks`: kernel times of all ranks in one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.trace.written import kernel, step, write

from ridgeline.cli.main import run


def ranks(folder: Path, times: list[float], **extra: Any) -> Path:
    """One trace per rank: a GEMM of that time twice, and 100 µs of a collective."""
    for rank, length in enumerate(times):
        events = [
            kernel(0, length, name="gemm"),
            kernel(2000, length, name="gemm"),
            kernel(4000, 100, name="ncclDevKernel_AllReduce"),
        ]
        write(folder / f"rank{rank}.json", events, **extra)
    return folder


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["trace", "ranks", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_extremes_name_their_ranks_and_the_slow_one_stands_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = asked(capsys, str(ranks(tmp_path, [100, 101, 99, 100, 300, 100])))
    gemm = next(one for one in found["kernels"] if one["name"] == "gemm")
    assert (gemm["ranks"], gemm["mean_calls"], gemm["kernel_class"]) == (6, 2, "gemm")
    assert gemm["mean_us"] == pytest.approx(2 * 800 / 6)
    assert (gemm["min_us"], gemm["min_rank"], gemm["max_us"], gemm["max_rank"]) == (198, 2, 600, 4)
    assert gemm["spread_share"] == pytest.approx(402 / (1600 / 6))
    assert gemm["outlier_ranks"] == [4]
    assert [one["stands_out_in"] for one in found["ranks"]] == [0, 0, 0, 0, 1, 0]
    assert found["ranks"][4]["classes_us"] == {"gemm": 600, "communication": 100}


def test_of_two_ranks_none_stands_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(capsys, str(ranks(tmp_path, [100, 900])))
    assert [one["outlier_ranks"] for one in found["kernels"]] == [[], []]


def test_a_kernel_that_a_rank_never_ran_is_zero_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ranks(tmp_path, [100] * 4)
    write(folder / "rank4.json", [kernel(0, 100, name="gemm"), kernel(2000, 100, name="gemm")])
    collective = next(
        one
        for one in asked(capsys, str(folder))["kernels"]
        if one["kernel_class"] == "communication"
    )
    assert (collective["ranks"], collective["min_us"], collective["min_rank"]) == (4, 0, 4)
    assert collective["outlier_ranks"] == [4]


def test_traces_without_numbers_of_their_own_go_by_their_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = {"distributedInfo": {"rank": 7}}
    found = asked(capsys, str(ranks(tmp_path, [100, 200, 100], **info)))
    assert [one["rank"] for one in found["ranks"]] == [0, 1, 2]


def test_whole_steps_of_each_rank_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(3):
        events = [step(0, 50, 1), step(50, 50, 2), kernel(10, 20), kernel(60, 500)]
        write(tmp_path / f"rank{rank}.json", events)
    found = asked(capsys, str(tmp_path), "--window", "steps")
    assert (found["window"], found["kernels"][0]["mean_us"]) == ("steps", 20)


def test_one_gpu_is_not_compared_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "rank0.json", [kernel(0, 5)])
    assert run(["trace", "ranks", str(path)]) == 2
    shown = capsys.readouterr()
    assert "two GPUs or more" in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.slow
def test_eight_real_ranks_add_up_and_show_who_comes_last(
    real_traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(real_traces / "v100_dlrm_8rank_nccl")
    found = asked(capsys, folder, "--top", "9999")
    assert [one["rank"] for one in found["ranks"]] == list(range(8))
    for part in ("kernels", "classes"):
        total = sum(one["mean_us"] for one in found[part])
        assert total == pytest.approx(sum(one["gpu_us"] for one in found["ranks"]) / 8)
    collectives = found["classes"][0]
    assert collectives["name"] == "communication"
    assert collectives["min_rank"] == 7  # the others wait for it in five of eight
    capsys.readouterr()
    assert run(["trace", "ranks", folder]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "8 ranks: GPU time from 2.82 ms (rank 7)" in shown
