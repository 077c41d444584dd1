"""What kernels bench says without a GPU, and what it shows of timings."""

from __future__ import annotations

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
