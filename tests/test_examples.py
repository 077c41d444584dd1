"""The scripts that we ship: plain PyTorch, run as they are and measured as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.warm_scripts import start_plainly

from ridgeline.measure.live.profile import measure
from ridgeline.measure.live.windows import MeasurementPlan

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SMALL = {
    "infer.py": ("--width", "48", "--layers", "2"),
    "infer_images.py": ("--model", "mobilenet", "--image", "64"),
    "train_accumulate.py": ("--width", "32", "--layers", "1", "--length", "32"),
    "train_cnn.py": ("--channels", "8", "--image-size", "16"),
    "train_ddp.py": ("--width", "64"),
    "train_gan.py": ("--channels", "4", "--batch-size", "8"),
    "train_gpt.py": (
        "--width", "32", "--layers", "1", "--block-size", "32", "--text-bytes", "100000",
    ),
    "train_input_bound.py": ("--channels", "4", "--image-size", "16"),
    "train_lstm.py": ("--hidden", "32", "--embedding", "16", "--vocab", "200", "--words", "5000"),
}  # fmt: skip
"""Sizes at which a step takes milliseconds."""
KINDS = {p.name: "inference" if p.name.startswith("infer") else "training" for p in EXAMPLES}
QUICK = ["train_lstm.py", "train_gan.py", "infer.py"]


def test_there_is_an_example_of_every_kind() -> None:
    assert {
        "train_gpt.py", "train_cnn.py", "train_lstm.py", "train_gan.py", "train_input_bound.py",
        "train_accumulate.py", "train_ddp.py", "infer.py", "infer_images.py",
    } <= {path.name for path in EXAMPLES}  # fmt: skip


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_plain_scripts(path: Path) -> None:
    assert "ridgeline" not in path.read_text().lower()


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run_to_their_end_from_anywhere(path: Path, tmp_path: Path) -> None:
    check_run(path, tmp_path, *SMALL[path.name])


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_run_to_their_end_as_they_are(path: Path, tmp_path: Path) -> None:
    check_run(path, tmp_path)


def check_run(path: Path, folder: Path, *options: str) -> None:
    log = folder / "log"
    started = start_plainly([str(path), "--steps", "3", *options], log, folder)
    assert started.wait(240) == 0, log.read_text()[-1000:]


def check_measured(path: Path, *options: str) -> None:
    command = [str(path), "--steps", "200", *options]
    profile = measure(command, MeasurementPlan(steps=8, warmup=3, budget_seconds=60))[0]
    assert profile.kind == KINDS[path.name]
    assert profile.steps >= 8
    assert profile.flops_per_step > 0
    total = sum(phase.mean for phase in profile.phases.values())
    assert total == pytest.approx(profile.step_seconds.mean, rel=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", QUICK)
def test_examples_are_measured(name: str) -> None:
    check_measured(EXAMPLES[0].with_name(name), *SMALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(KINDS) - set(QUICK)))
def test_the_other_examples_are_measured(name: str) -> None:
    check_measured(EXAMPLES[0].with_name(name))
