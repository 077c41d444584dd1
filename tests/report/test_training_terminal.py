"""A run is shown while it goes, from its log, and whole when it is done."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.drawn import drawn

from ridgeline.cli.recipe_runs import LiveView
from ridgeline.records.layout import Layout
from ridgeline.records.measurement import Environment
from ridgeline.records.recipe import (
    Recipe,
    RecipeData,
    RecipeModel,
    RecipeOptimizer,
    RecipeRun,
)
from ridgeline.records.recipe_file import write_recipe
from ridgeline.records.store import read_record, write_record
from ridgeline.records.training_run import FILE, Beside, LoggedStep, TrainingRun
from ridgeline.report.views.train import curve, phase_bar, run_document

RECIPE = Recipe(
    model=RecipeModel(config="gpt2"),
    data=RecipeData(seq=64),
    layout=Layout(global_batch=8),
    optimizer=RecipeOptimizer(learning_rate=1e-3, final_learning_rate=1e-4),
    run=RecipeRun(steps=100),
)


def logged(step: int, loss: float, **more: object) -> LoggedStep:
    return LoggedStep(
        step=step, loss=loss, learning_rate=1e-3, gradient_norm=1.0, step_seconds=0.5,
        tokens_per_second=12_345.0, mfu=0.314, phases={"forward": 0.1, "backward": 0.3},
        peak_memory_bytes=2.1e9, **more,
    )  # fmt: skip


def write(folder: Path, *lines: LoggedStep) -> None:
    with (folder / FILE).open("ab") as file:
        file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)


def test_the_live_view_says_what_is_new_and_is_silent_otherwise(tmp_path: Path) -> None:
    said: list[str] = []
    view = LiveView(tmp_path, said.append, pictures=False)
    view.refresh()
    assert not said
    write_recipe(tmp_path / "recipe.toml", RECIPE)
    write(tmp_path, logged(10, 4.0), logged(20, 3.5, skipped_steps=2))
    view.refresh()
    view.refresh()
    assert said == [
        (
            "step 20 of 100 · loss 3.5000 · 12.3 ktokens/s · MFU 31.4 % · peak 2.10 GB · 2 skipped"
            " · 40.0 s left"
        )
    ]
    write(tmp_path, logged(100, 3.0, validation_loss=3.2, straggler="rank 1 is slow in data"))
    view.refresh()
    assert "held out 3.2000" in said[-1]
    assert "left" not in said[-1]
    assert said[-1].endswith("rank 1 is slow in data")


def test_on_a_terminal_the_curve_and_the_phases_stand_below(tmp_path: Path) -> None:
    said: list[str] = []
    write(tmp_path, logged(10, 4.0), logged(20, 2.0), logged(30, float("nan")))
    LiveView(tmp_path, said.append, pictures=True).refresh()
    line, loss, step = said[0].split("\n")
    assert line.startswith("step 30 · loss nan")
    assert loss == "loss 4.000 █▁? nan"
    assert step == f"step 500 ms {'f' * 10}{'b' * 30} forward 25 %, backward 75 %"


@given(values=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=300))
def test_any_curve_can_be_drawn(values: list[float]) -> None:
    assert len(curve(values)) == min(60, len(values))


@given(
    phases=st.dictionaries(
        st.sampled_from(["data", "forward", "backward", "other"]), st.floats(0, 1e6), min_size=1
    ),
    columns=st.integers(1, 100),
)
def test_a_bar_of_phases_is_as_long_as_asked(phases: dict[str, float], columns: int) -> None:
    bar = phase_bar(phases, columns).split(" ", 1)[0]
    assert len(bar) == (columns if sum(phases.values()) else 0)


def test_a_finished_run_shows_what_was_measured_beside_what_was_predicted(tmp_path: Path) -> None:
    write(tmp_path, logged(10, 4.0), logged(20, 3.0))
    run = TrainingRun(
        recipe=RECIPE,
        environment=Environment(
            command=[], cwd="", date="", host_cpu="", cpu_count=2, device="", python="", torch="",
            ridgeline="",
        ),
        processes=2, steps=100, tokens=51_200, parameters=1000, trainable_parameters=100,
        wall_seconds=50.0, step_samples=[0.5], tokens_per_second=12_345.0, mfu=None,
        final_loss=3.0, validation_loss=3.2, phases={"forward": 0.1, "backward": 0.4},
        step_seconds=Beside(predicted=0.4, measured=0.5),
        peak_memory_bytes=Beside(predicted=None, measured=2.1e9),
        bytes_sent=4e6, skipped_steps=0, stopped="the loss is not finite",
    )  # fmt: skip
    text = drawn(run_document(run, [4.0, 3.0], tmp_path), 120)
    assert (
        "loss 3.0000, held out 3.2000 (perplexity 24.5) after 100 steps and 51,200 tokens" in text
    )
    assert "It ended early: the loss is not finite" in text
    for row in ("500 ms", "400 ms", "−20 %", "2.10 GB", "4.00 MB", "100 of 1,000", "backward 80 %"):
        assert row in text
    assert "█" in text


def test_a_run_whose_loss_is_no_number_is_read_back_and_shown(tmp_path: Path) -> None:
    run = TrainingRun(
        recipe=RECIPE,
        environment=Environment(
            command=[], cwd="", date="", host_cpu="", cpu_count=2, device="", python="", torch="",
            ridgeline="",
        ),
        processes=1, steps=3, tokens=96, parameters=10, trainable_parameters=10, wall_seconds=1.0,
        step_samples=[0.5], tokens_per_second=96.0, mfu=None, final_loss=None,
        validation_loss=float("nan"), phases={"forward": 0.1},
        step_seconds=Beside(predicted=None, measured=0.5),
        peak_memory_bytes=Beside(predicted=None, measured=1e6), bytes_sent=None, skipped_steps=0,
        stopped="the loss is not finite",
    )  # fmt: skip
    write_record(tmp_path / "run.json", run)
    back = read_record(tmp_path / "run.json", TrainingRun)
    assert back.final_loss is None
    write(tmp_path, logged(1, float("nan")))
    text = drawn(run_document(back, [float("nan")], tmp_path), 90)
    assert "no finite loss after 3 steps" in text


@pytest.mark.parametrize(("values", "picture"), [([1.0, 1.0], "▁▁"), ([float("nan")], "?")])
def test_curves_without_a_range(values: list[float], picture: str) -> None:
    assert curve(values) == picture
