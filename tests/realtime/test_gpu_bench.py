"""The pipeline part of `bench/gpu/run.sh`, rehearsed on small images without a GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "bench/gpu"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`bench/gpu/realtime.py`, under a name that no folder of tests has."""
    spec = importlib.util.spec_from_file_location("gpu_realtime", BENCH / "realtime.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_realtime", module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_boxes_are_the_same_within_rounding_and_not_beyond(bench: ModuleType) -> None:
    boxes = torch.linspace(-4.0, 4.0, 21).reshape(3, 7)
    near, far = 1.001 * boxes, 1.1 * boxes
    assert bench.same_boxes({0: boxes}, {0: near, 1: far}) == ""
    assert "scores of frame 0 part by" in bench.same_boxes({0: boxes}, {0: far})
    assert "boxes of frames [0] and [1] came out" in bench.same_boxes({0: boxes}, {1: boxes})
    assert "part by nan" in bench.same_boxes({0: boxes}, {0: boxes * float("nan")})


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "realtime.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "bench/gpu/realtime.py: PyTorch sees no GPU here; --rehearse runs small images"
    )
