"""What kernels bench says without a GPU, and what it shows of timings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.records.kernel_bench import KernelBench, KernelTiming
from ridgeline.report.markdown import draw_markdown
from ridgeline.report.views.kernel_bench import bench_document


@pytest.mark.parametrize("options", [[], ["--json"], ["attention"]])
def test_without_a_gpu_it_ends_in_one_line(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run(["kernels", "bench", *options]) == 2
    said = capfd.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert "torch sees no GPU here" in line


REHEARSAL = """
import torch
from ridgeline.kernels.bench import inference
inference.MADE["device"] = "cpu"
rows = [*inference.weight_rows(outputs=36, depth=256, batches=(1, 5)),
        inference.decode_row(sequences=2, context=32, heads=4, key_heads=2, dim=16)]
for row in rows:
    ours, other = (work().double() for work in row.ways.values())
    assert (ours - other).norm() < 1e-2 * other.norm(), row.name
    assert bool(row.moved_bytes) != bool(row.flops), row.name
print(len(rows))
"""


@pytest.mark.slow
def test_the_ways_of_a_row_of_inference_compute_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REHEARSAL],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["7"]


def test_all_of_the_gpu_script_fits_into_eight_minutes() -> None:
    text = (Path(__file__).parents[2] / "bench/gpu/run.sh").read_text()
    limits = re.findall(r'^part "[^"]+" (\d+) ', text, re.MULTILINE)
    assert len(limits) == text.count("\npart ") >= 7
    assert sum(map(int, limits)) < 8 * 60
    assert text.index('part "Correctness"') < text.index('part "Kernels"')


def test_a_missed_goal_is_marked_and_a_failure_told() -> None:
    ours = KernelTiming(
        kernel="attention causal 8192 forward",
        way="ours",
        seconds=2e-3,
        flops_per_second=4e14,
        ratios={"cuDNN": 0.7, "compiled": 1.2},
        goals={"cuDNN": 0.8, "compiled": 1.0},
    )
    other = KernelTiming(kernel=ours.kernel, way="cuDNN", seconds=None, error="RuntimeError: no")
    assert ours.missed == {"cuDNN": 0.7}
    shown = draw_markdown(
        bench_document(
            KernelBench(device="GPU", torch="2", copy_bytes_per_second=4e12, timings=[ours, other])
        ),
    )
    assert "0.70 × cuDNN (goal 0.8), 1.20 × compiled" in shown
    assert "400 TFLOP/s" in shown
    assert "RuntimeError: no" in shown
    assert "1 of ours miss a goal" in shown
