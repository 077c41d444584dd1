"""Runs this folder's tests under Triton's interpreter, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


FOR_SERVING = ("paged_attention", "linear")
FOR_TRAINING = (
    "residual_norm", "gated_product", "rotary", "linear_cross_entropy", "adamw", "fused_modules",
    "grouped_matmul", "muon", "flash_attention",
)  # fmt: skip
QUICK = (
    "interpreter and not cuda and (((test_paged_attention.py or test_linear.py) and ("
    "odd_heads or padding or (quantised and bfloat16) or (writing and 16)"
    " or (zero_points and 2) or (int8_per_output and bfloat16)))"
    " or (not test_paged_attention.py and not test_linear.py and ("
    "(float64 and not 1025 and ((5 and 7 and float32) or (24 and float32) or all or 1000"
    " or (70 and float32) or (33 and float32)))"
    " or bottom)))"
)
"""Each kernel in one or two of its cases, those for training forward and backward."""


def test_kernels_agree_with_their_references_under_the_interpreter() -> None:
    """All in one process: to start it takes longer than the tests."""
    names = [name for name in FOR_SERVING + FOR_TRAINING if name != "fused_modules"]  # all long
    told = check(QUICK, "-rA", *(HERE / f"test_{name}.py" for name in names))
    for name in names:
        assert f"PASSED tests/kernels/triton/test_{name}.py::" in told


@pytest.mark.slow
def test_the_usual_cases_of_training_agree_under_the_interpreter() -> None:
    check("interpreter and not cuda", *(HERE / f"test_{name}.py" for name in FOR_TRAINING))


@pytest.mark.slow
def test_every_case_of_training_agrees_under_the_interpreter() -> None:
    check("interpreter and not cuda", "-m", "slow", *(HERE / f"test_{n}.py" for n in FOR_TRAINING))


@pytest.mark.slow
@pytest.mark.parametrize("file", ["test_paged_attention.py", "test_linear.py"])
def test_every_case_agrees_under_the_interpreter(file: str) -> None:
    check("interpreter", HERE / file)


def check(words: str, *files: str | Path) -> str:
    """Run the tests whose names hold these words, and return what pytest printed."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-k",
            words,
            *files,
        ],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
    assert "skipped" not in run.stdout
    return run.stdout
