"""The scripts that we ship: plain PyTorch, run as they are and measured as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.measure.profile import Plan, measure

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
KINDS = {path.name: "inference" if path.name == "infer.py" else "training" for path in EXAMPLES}
QUICK = ["train_lstm.py", "train_gan.py", "infer.py"]


def test_there_is_an_example_of_every_kind() -> None:
    assert {
        "train_gpt.py", "train_cnn.py", "train_lstm.py", "train_gan.py", "train_input_bound.py",
        "train_accumulate.py", "train_ddp.py", "infer.py",
    } <= {path.name for path in EXAMPLES}  # fmt: skip


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_plain_scripts(path: Path) -> None:
    assert "ridgeline" not in path.read_text().lower()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run_to_their_end_from_anywhere(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path), "--steps", "3"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1000:]


def check_measured(path: Path) -> None:
    profile = measure([str(path), "--steps", "200"], Plan(steps=8, warmup=3, budget_seconds=60))[0]
    assert profile.kind == KINDS[path.name]
    assert profile.steps >= 8
    assert profile.flops_per_step > 0
    total = sum(phase.mean for phase in profile.phases.values())
    assert total == pytest.approx(profile.step_seconds.mean, rel=1e-6)


@pytest.mark.parametrize("name", QUICK)
def test_examples_are_measured(name: str) -> None:
    check_measured(EXAMPLES[0].with_name(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(KINDS) - set(QUICK)))
def test_the_other_examples_are_measured(name: str) -> None:
    check_measured(EXAMPLES[0].with_name(name))
