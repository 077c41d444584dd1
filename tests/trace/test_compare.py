"""Two traces, or two sets of them, side by side: what is slower, and when nothing can be said."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.trace.drawn import drawn_run
from tests.trace.written import call, host, kernel, read_kineto, step, write

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.trace.columns import Trace
from ridgeline.trace.compare.comparison import TraceComparison, compare_sides, compare_traces
from ridgeline.trace.compare.noise import error_of_sum
from ridgeline.trace.compare.sides import JobRepeats
from ridgeline.trace.compare.times import rank_times
from ridgeline.trace.load import load_traces

PAIRS = 40


Shown = pytest.CaptureFixture[str]


def asked(shown: Shown, *words: object) -> tuple[int, str]:
    """The exit code of `trace compare`, and what it printed."""
    code = run(["trace", "compare", *map(str, words)])
    told = shown.readouterr()
    return code, told.out + told.err


def compared(shown: Shown, *words: object) -> dict[str, Any]:
    run(["trace", "compare", *map(str, words), "--json"])
    found: dict[str, Any] = json.loads(shown.readouterr().out)
    return found


def a_run(
    path: Path, *, slow: float = 1.0, steps: int = 8, seed: int = 1, extra: str = ""
) -> Trace:
    """Steps of two kernels with 2 % of noise; `slow` stretches the second."""
    chance = random.Random(seed)
    now, number, events = 0.0, 0, []
    for count in range(steps):
        begin = now
        for name, length in (("gemm", 500.0), ("softmax", 300.0 * slow), (extra, 50.0)):
            if not name:
                continue
            number += 1
            took = length * (1 + chance.uniform(-0.02, 0.02))
            events += [call(now, 2, number), kernel(now + 5, took, correlation=number, name=name)]
            now += 5 + took
        events.append(step(begin, now - begin, count))
    return read_kineto(write(path, events))


def test_noise_alone_is_the_same(tmp_path: Path) -> None:
    a, b = a_run(tmp_path / "a.json"), a_run(tmp_path / "b.json", seed=2)
    found = compare_traces(a, b)
    assert (found.verdict, found.scale) == ("same", "steps")
    assert {row.status for row in found.kernels} == {"same"}


def test_a_slower_kernel_is_found_with_its_interval(tmp_path: Path) -> None:
    a, b = a_run(tmp_path / "a.json"), a_run(tmp_path / "b.json", slow=1.3, seed=2)
    found = compare_traces(a, b)
    assert found.verdict == "slower"
    assert found.ratio == pytest.approx(900 / 810, abs=0.02)
    first = found.kernels[0]
    assert (first.name, first.status) == ("softmax", "slower")
    assert first.low_us is not None
    assert first.high_us is not None
    assert first.low_us < 90 < first.high_us
    assert compare_traces(b, a).verdict == "faster"


def test_what_is_new_and_gone_is_named(tmp_path: Path) -> None:
    a, b = a_run(tmp_path / "a.json"), a_run(tmp_path / "b.json", extra="dropout", seed=3)
    status = {row.name: row.status for row in compare_traces(a, b).kernels}
    assert status["dropout"] == "new"
    assert {row.name: row.status for row in compare_traces(b, a).kernels}["dropout"] == "gone"


def test_a_longer_capture_of_the_same_work_is_not_slower(tmp_path: Path) -> None:
    a, b = a_run(tmp_path / "a.json", steps=6), a_run(tmp_path / "b.json", steps=15, seed=5)
    assert compare_traces(a, b).verdict == "same"


def test_different_work_is_not_judged(tmp_path: Path) -> None:
    events = [kernel(100.0 * n, 50, name=f"other{n % 3}") for n in range(30)]
    other = read_kineto(write(tmp_path / "o.json", events))
    found = compare_traces(a_run(tmp_path / "a.json"), other)
    assert found.verdict == "not comparable"
    with pytest.raises(InputError, match="operator, shape, kernel"):
        compare_traces(other, other, by="colour")


def test_of_the_published_pair_the_second_took_longer_but_one_window_proves_it_not(
    real_traces: Path,
) -> None:
    before, after = (
        load_traces(real_traces / "nsys_2gpu" / f"mfu_2gpu_{name}.sqlite")
        for name in ("before", "after")
    )
    for a, b in zip(before, after, strict=True):
        found = compare_traces(a, b)
        assert found.verdict == "cannot tell"
        assert found.ratio == pytest.approx(1.13, abs=0.01)
        assert found.low is not None
        assert found.low < 1 < found.ratio
        assert found.idle_b_us > found.idle_a_us


@pytest.mark.slow
def test_more_loader_workers_make_steps_faster(real_traces: Path, capsys: Shown) -> None:
    none, four = (
        real_traces / "v100_resnet50_dataloader" / f"num_workers_{count}.pt.trace.json.gz"
        for count in (0, 4)
    )
    assert asked(capsys, four, none)[0] == 3
    assert compared(capsys, none, four)["ranks"][0]["verdict"] == "faster"


# -- no verdict without repeats --------------------------------------------------------------------


def test_one_window_without_recurring_work_proves_nothing(tmp_path: Path, capsys: Shown) -> None:
    places = []
    for name, length in (("a", 100.0), ("b", 300.0)):
        events = [
            kernel(1000.0 * number, length * (number + 1), name=f"kernel_{number}")
            for number in range(8)
        ]
        places.append(write(tmp_path / f"{name}.json", events))
    code, told = asked(capsys, *places)
    assert code == 0
    assert "Cannot tell" in told
    assert "profiler.step()" in told
    assert compared(capsys, *places)["ranks"][0]["low"] is None


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("law", [{}, {"jitter": 0.1}, {"stall_share": 0.02}, {"drift": 0.05}])
def test_two_windows_of_one_law_are_called_slower_in_fewer_than_one_of_twenty(
    law: dict[str, float],
) -> None:
    found = [
        compare_traces(drawn_run(2 * n, **law), drawn_run(2 * n + 1, **law)) for n in range(PAIRS)
    ]
    assert all(one.low is not None and one.high is not None and one.low < one.high for one in found)
    assert Counter(one.verdict for one in found)["slower"] <= PAIRS * 0.05
    if not law.get("drift"):
        assert Counter(one.verdict for one in found)["same"] >= PAIRS * 0.9


@pytest.mark.parametrize("pairs", [20, pytest.param(PAIRS, marks=pytest.mark.slow)])
def test_two_short_windows_under_a_drift_are_called_slower_in_fewer_than_one_of_twenty(
    pairs: int,
) -> None:
    law: dict[str, Any] = {"layers": 30, "drift": 0.05}
    found = [
        compare_traces(drawn_run(2 * n, **law), drawn_run(2 * n + 1, **law)).verdict
        for n in range(pairs)
    ]
    assert Counter(found)["slower"] <= pairs * 0.05


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize("law", [{}, {"jitter": 0.1}, {"drift": 0.05, "memory": 10}])
def test_a_slowdown_of_a_tenth_is_found_in_one_window_each(law: dict[str, Any]) -> None:
    found = [
        compare_traces(drawn_run(2 * n, **law), drawn_run(2 * n + 1, slow=1.1, **law)).verdict
        for n in range(20)
    ]
    assert Counter(found)["slower"] >= 18


def test_the_error_of_a_sum_is_that_of_repeated_draws() -> None:
    chance = np.random.default_rng(0)
    groups = np.arange(900) % 3
    means = np.array([10.0, 200.0, 40.0])[groups]
    draws = means + chance.normal(0, 5, (400, 900))
    found = error_of_sum(draws[0], [groups])
    assert found is not None
    # The widest of several estimates is on the safe side of the truth.
    assert 0.9 <= found.error_us / draws.sum(axis=1).std() <= 2


# -- repeats and jobs ------------------------------------------------------------------------------


def side(slow: float, seeds: range, rank: int | None = None) -> list[Any]:
    return [rank_times(drawn_run(n, layers=20, slow=slow, rank=rank)) for n in seeds]


def test_three_repeats_of_a_window_are_a_sample_of_runs() -> None:
    a, b = JobRepeats.of(side(1.0, range(3))), JobRepeats.of(side(1.2, range(3, 6)))
    found = compare_sides(a, b)
    assert (found.scale, found.verdict) == ("repeats", "slower")
    assert found.ratio == pytest.approx(1.2, abs=0.03)
    assert compare_sides(a, JobRepeats.of(side(1.0, range(7, 10)))).verdict == "same"


def test_traces_of_one_rank_are_repeats_and_of_several_are_one_job() -> None:
    job = [*side(1.0, range(3), rank=0), *side(1.5, range(3), rank=1)]
    found = JobRepeats.of(job)
    assert [[times.rank for times in ranks] for ranks in found.jobs] == [[0, 1]] * 3
    assert [rank.whole.rank for rank in found.ranks] == [0, 1]
    with pytest.raises(InputError, match="give whole runs"):
        JobRepeats.of(job[:-1])


def a_job(folder: Path, slow: tuple[float, ...]) -> Path:
    folder.mkdir()
    for rank, own in enumerate(slow):
        a_run(folder / f"rank{rank}.json", slow=own, seed=rank + len(folder.name))
    return folder


@pytest.mark.slow
def test_a_job_is_as_slow_as_its_slowest_rank(tmp_path: Path, capsys: Shown) -> None:
    even, late = a_job(tmp_path / "even", (1.0, 1.0)), a_job(tmp_path / "late", (1.0, 1.5))
    found = compared(capsys, even, late)
    assert found["job"]["verdict"] == "slower"
    assert found["job"]["ratio"] == pytest.approx(1.18, abs=0.02)
    assert [one["verdict"] for one in found["ranks"]] == ["same", "slower"]
    code, told = asked(capsys, even, late)
    assert code == 3
    assert "rank 1" in told
    code, told = asked(capsys, even, late / "rank0.json")
    assert code == 2
    assert "has 2 ranks" in told


# -- the same work under other names ---------------------------------------------------------------


def model(
    path: Path, *, vendor: str, rows: int = 64, layers: int = 12, fused: bool = False
) -> Trace:
    """A model whose operators launch kernels with a vendor's names."""
    chance = random.Random(len(vendor) + rows)
    events: list[dict[str, Any]] = []
    now, number = 0.0, 0
    dims = {"Input Dims": [[rows, 32], [32, 32]], "Input type": ["float", "float"]}
    for _ in range(layers):
        for outer, inner, length in (
            ("aten::linear", "aten::addmm", 100.0),
            ("aten::sdpa", f"aten::_{vendor}_attention", 60.0),
            ("aten::gelu", "", 20.0),
        ):
            number += 1
            took = length * rows / 64 * (1 + chance.uniform(-0.02, 0.02))
            events.append(host(now, 9, outer, **dims))
            if inner and not fused:
                events.append(host(now + 1, 7, inner, **dims))
            name = f"{vendor}_{outer[6:]}_kernel"
            events += [
                call(now + 2, 2, number),
                kernel(now + 9, took, correlation=number, name=name),
            ]
            now += took + 12
    return read_kineto(write(path, events), details=True)


def test_operators_match_where_kernels_and_inner_operators_have_other_names(tmp_path: Path) -> None:
    a, b = (model(tmp_path / f"{vendor}.json", vendor=vendor) for vendor in ("cuda", "hip"))
    found = compare_traces(a, b)
    assert found.verdict == "same"
    assert (found.same_operators_share, found.same_inputs_share) == (1, 1)
    rows = {row.name: row for row in found.operators}
    assert set(rows) == {"aten::linear › aten::addmm", "aten::sdpa", "aten::gelu"}
    assert rows["aten::sdpa"].kernels_a == ["cuda_sdpa_kernel"]
    assert rows["aten::sdpa"].kernels_b == ["hip_sdpa_kernel"]
    assert {row.status for row in found.kernels} == {"new", "gone"}


def test_an_operator_that_launches_itself_matches_one_that_goes_deeper(tmp_path: Path) -> None:
    a = model(tmp_path / "a.json", vendor="cuda")
    b = model(tmp_path / "b.json", vendor="cuda", fused=True)
    found = compare_traces(a, b)
    assert {row.name for row in found.operators} == {"aten::linear", "aten::sdpa", "aten::gelu"}
    assert {row.status for row in found.operators} == {"same"}


def test_inputs_of_other_sizes_are_different_work(tmp_path: Path) -> None:
    a = model(tmp_path / "a.json", vendor="cuda")
    b = model(tmp_path / "b.json", vendor="cuda", rows=128)
    found = compare_traces(a, b)
    assert found.verdict == "not comparable"
    assert "64x32, 32x32" in found.warnings[0]
    assert "128x32, 32x32" in found.warnings[0]
    shapes = {row.name for row in compare_traces(a, b, by="shape").operators}
    assert "aten::gelu 64x32, 32x32" in shapes


def published(real_traces: Path) -> TraceComparison:
    name = "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    a, b = (
        load_traces(real_traces / folder / name, details=True)[0]
        for folder in ("h100_inference", "mi300x_inference")
    )
    return compare_traces(a, b)


def test_one_model_on_two_vendors_matches_by_operator(real_traces: Path) -> None:
    found = published(real_traces)
    assert found.verdict in {"same", "cannot tell"}
    assert found.same_operators_share is not None
    assert found.same_operators_share > 0.99
    assert found.same_order_share is not None
    assert found.same_order_share > 0.95
    assert found.same_inputs_share == pytest.approx(1)
    rows = {row.name: row for row in found.operators}
    attention = rows["aten::scaled_dot_product_attention › aten::_flash_attention_forward"]
    assert "flash_fwd_kernel" in attention.kernels_a[0]
    assert attention.kernels_b[0] == "attn_fwd"
    assert attention.status == "slower"
    assert rows["aten::mul"].status == "faster"


def test_kernels_launched_before_the_trace_belong_to_the_operators_of_their_names(
    real_traces: Path,
) -> None:
    found = published(real_traces)
    untold = sum(row.total_a_us for row in found.operators if row.name.startswith("(no operator)"))
    assert untold < 0.02 * sum(row.total_a_us for row in found.operators)


@pytest.mark.slow
def test_two_runs_agree_to_the_last_digit(real_traces: Path) -> None:
    folder = real_traces / "v100_dlrm_8rank_nccl"
    files = [str(next(folder.glob(f"worker{rank}_*"))) for rank in (0, 7)]
    program = "from ridgeline.cli.main import main; main()"
    command = [sys.executable, "-c", program, "trace", "compare", *files, "--json"]
    said = {
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=False
        ).stdout
        for seed in ("0", "1")
    }
    assert len(said) == 1
    assert b"same_inputs_share" in said.pop()
