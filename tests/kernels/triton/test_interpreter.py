"""Runs this folder's tests under Triton's interpreter, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.warm_scripts import run_module_warm

HERE = Path(__file__).parent


FOR_SERVING = ("paged_attention", "linear")
FOR_TRAINING = (
    "residual_norm", "gated_product", "rotary", "linear_cross_entropy", "adamw", "fused_modules",
    "grouped_matmul", "muon", "flash_attention", "odd_inputs",
)  # fmt: skip
QUICK = {
    "adamw": "test_a_step_is_that_of_float64[interpreter-torch.float32-torch.float32-1000]",
    "flash_attention": "test_results_and_every_gradient_are_those_of_float64"
    "[interpreter-bottom right]",
    "gated_product": "test_results_and_gradients_are_those_of_float64"
    "[interpreter-(5, 7)-torch.float32-silu]",
    "grouped_matmul": "test_uneven_and_empty_groups_are_those_of_float64"
    "[interpreter-[0, 3, 3, 70, 150]-torch.float32]",
    "linear": "test_int8_per_output[interpreter-torch.bfloat16-1]",
    "linear_cross_entropy": "test_losses_and_gradients_are_those_of_float64[interpreter-mean-all]",
    "muon": "test_symmetric_products_are_those_of_float64_and_symmetric"
    "[interpreter-(2, 70, 33)-torch.float32]",
    "odd_inputs": "test_small_tensors_are_read_where_they_lie[interpreter-norm-strided]",
    "paged_attention": "test_odd_heads_head_sizes_and_blocks[interpreter-(3, 3)-32-5]",
    "residual_norm": "test_results_and_gradients_are_those_of_float64"
    "[interpreter-(5, 7)-torch.float32-rms]",
    "rotary": "test_results_and_gradients_are_those_of_float64"
    "[interpreter-2-6-2-5-24-torch.float32-halves]",
}
"""Each kernel in one of its cases, those for training forward and backward."""


def test_kernels_agree_with_their_references_under_the_interpreter() -> None:
    """All in one process: to start it takes longer than the tests."""
    cases = [f"{HERE}/test_{name}.py::{case}" for name, case in QUICK.items()]
    told = check("", "-rA", *cases, start=run_module_warm)
    for name, case in QUICK.items():
        assert f"PASSED tests/kernels/triton/test_{name}.py::{case}" in told


def test_every_kernel_has_a_quick_case() -> None:
    # "linear" stands for the files of serving; all cases of fused_modules are long
    assert set(QUICK) == {*FOR_SERVING, *FOR_TRAINING} - {"fused_modules"}


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


def check(words: str, *files: str | Path, start: Callable[..., Any] = subprocess.run) -> str:
    """Run the tests whose names hold these words, and return what pytest printed."""
    run = start(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-k",
            words,
            *map(str, files),
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
