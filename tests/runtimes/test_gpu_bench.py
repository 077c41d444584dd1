"""The vision part of `bench/gpu/run.sh`, rehearsed on small networks without a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "bench/gpu"
QUICK = ("eager", "channels-last", "CUDA graphs", "TensorRT")


@pytest.fixture
def bench() -> Iterator[ModuleType]:
    """`bench/gpu/vision.py`, imported as it runs: from its own folder."""
    sys.path.insert(0, str(BENCH))
    try:
        import vision

        yield vision
    finally:
        sys.path.remove(str(BENCH))


def printed(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> tuple[bool, list[list[str]]]:
    with torch.no_grad():
        sound = bench.table(bench.REHEARSAL)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    return sound, [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows[2:]]


@pytest.mark.slow
def test_each_row_says_how_near_it_is_and_how_long_it_takes(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {name: bench.CANDIDATES[name] for name in QUICK}
    monkeypatch.setattr(bench, "CANDIDATES", quick)
    sound, rows = printed(bench, capsys)
    assert sound
    assert len(rows) == len(QUICK) * len(bench.BATCHES) * len(bench.DTYPES)
    timed = [row for row in rows if row[3] in ("eager", "channels-last")]
    for row in timed:
        nearness, p50, p99 = row[4], row[6], row[7]
        assert float(nearness) >= (bench.LEAST_SQNR if row[2] == "fp32" else bench.BELOW_EAGER)
        assert 0 < float(p50.split()[0]) <= float(p99.split()[0])
    if not torch.cuda.is_available():
        assert {row[4] for row in rows if row[3] == "CUDA graphs"} == {"needs a GPU"}


@pytest.mark.slow
def test_a_wrong_answer_is_not_timed_and_fails_the_run(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"off by a tenth": lambda model, _: lambda images: 1.1 * model.module(images)}
    monkeypatch.setattr(bench, "CANDIDATES", wrong)
    sound, rows = printed(bench, capsys)
    assert not sound
    assert {row[4][:9] for row in rows} == {"wrong: 20"}
    assert not any(cell for row in rows for cell in row[5:])


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "vision.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "bench/gpu/vision.py: PyTorch sees no GPU here; --rehearse runs a small model"
    )
