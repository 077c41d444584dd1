"""`ridgeline compress chain`: stages that compress and train as rows of one ledger."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tests.report.records import an_environment, neutral

import ridgeline.train.start
from ridgeline.cli.main import run
from ridgeline.records.recipe import Recipe
from ridgeline.records.store import write_record
from ridgeline.records.training_run import Beside, TrainingRun

LIBRARY = Path(__file__).parents[2] / "examples/models/library"
SOURCES = Path(json.__file__).parent
SHARED = f"""
model = "{LIBRARY}"
text = "held.txt"
calibration = "text/decoder.txt"
context = 64
[recipe.data]
path = "text"
seq = 32
workers = 0
[recipe.layout]
precision = "fp32"
compiled = false
[recipe.optimizer]
learning_rate = 1e-3
final_learning_rate = 1e-4
warmup_steps = 1
[recipe.run]
steps = 2
"""
STAGES = """
[[stages]]
name = "pruned"
scheme = "2:4-magnitude"
[[stages]]
name = "distilled"
[stages.recipe.distillation]
soft_weight = 0.9
[[stages]]
name = "taught-again"
[stages.recipe.distillation]
teacher = "distilled"
[stages.recipe.run]
steps = 3
[[stages]]
name = "rounded"
scheme = "w8a16-channel"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts, in which the command runs."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "decoder.txt").write_text((SOURCES / "decoder.py").read_text())
    (tmp_path / "held.txt").write_text((SOURCES / "encoder.py").read_text()[:600])
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Trainer:
    """Stands in for the ranks: copies the model that a recipe begins with, and notes the recipe."""

    def __init__(self) -> None:
        self.seen: list[Recipe] = []
        self.interrupted_at = -1

    def __call__(self, recipe: Recipe, folder: Path, *_: object) -> None:
        self.seen.append(recipe)
        if len(self.seen) == self.interrupted_at:
            raise KeyboardInterrupt
        shutil.copytree(recipe.model.checkpoint, folder / "model")
        assert recipe.steps is not None
        record = neutral(
            TrainingRun,
            recipe=recipe,
            environment=an_environment(),
            steps=recipe.steps,
            tokens=64,
            step_samples=[],
            phases={},
            step_seconds=Beside(predicted=None, measured=1.0),
            peak_memory_bytes=Beside(predicted=None, measured=1.0),
        )
        write_record(folder / "run.json", record)


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    made = Trainer()
    monkeypatch.setattr(ridgeline.train.start, "train_recipe", made)
    return made


def chain(place: Path, text: str, *words: str) -> int:
    (place / "chain.toml").write_text(text)
    line = ["compress", "chain", "chain.toml", "--out", "small", "--device", "cpu", "--no-speed"]
    return run([*line, *words])


def test_an_interrupted_chain_goes_on_where_it_was_and_every_stage_is_a_row(
    place: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.interrupted_at = 2
    assert chain(place, SHARED + STAGES) == 130
    assert "the same command goes on from it" in capsys.readouterr().err
    assert not (place / "small").exists()
    assert chain(place, SHARED + STAGES, "--json") == 0
    ledger: dict[str, Any] = json.loads(capsys.readouterr().out)
    names = ["as given", "pruned (2:4-magnitude)", "distilled", "taught-again"]
    assert [row["scheme"] for row in ledger["rows"]] == [*names, "rounded (w8a16-channel)"]
    first, *again = trainer.seen
    assert len(again) == 2, "the stage that was done is not trained again"
    assert [one.steps for one in (first, again[-1])] == [2, 3]
    assert [row["training"] and row["training"]["steps"] for row in ledger["rows"]] == [
        None, None, 2, 3, None,
    ]  # fmt: skip
    assert first.distillation is not None
    assert first.distillation.teacher == str(LIBRARY)
    assert first.model.checkpoint.endswith("01-pruned/row-1")
    assert again[-1].distillation is not None
    assert again[-1].distillation.teacher == again[-1].model.checkpoint
    pruned, distilled = ledger["rows"][1], ledger["rows"][2]
    assert pruned["divergence"]["kl_mean"] > 0.1
    assert distilled["quality"] == pruned["quality"], "the stand-in changes nothing"
    assert ledger["rows"][-1]["disk_bytes"] < 0.6 * ledger["rows"][0]["disk_bytes"]
    assert json.loads((place / "small" / "ledger.json").read_text())["rows"] == ledger["rows"]
    assert "taught-again" in (place / "small" / "report.html").read_text()
    assert not (place / "small.partial").exists()


def shallow(folder: Path) -> Path:
    """The library model with its first layer alone."""
    shutil.copytree(LIBRARY, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    tensors = load_file(folder / "model.safetensors")
    first = {name: one for name, one in tensors.items() if ".layers." not in name or ".0." in name}
    save_file(first, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_stage_that_loses_too_much_ends_the_chain_and_saves_nothing(
    place: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = SHARED.replace(str(LIBRARY), str(shallow(place / "shallow")))
    small = '[[stages]]\nname = "small"\nscheme = "w4a16-channel"\nmax_loss = "kl+0.000001"\n'
    assert chain(place, shared + small) == 3
    assert "nothing was saved: stage small: perplexity" in capsys.readouterr().err
    assert not (place / "small").exists()
    assert trainer.seen == []


@pytest.mark.slow
def test_a_stage_that_loses_too_much_ends_the_chain_and_later_ones_may_be_changed(
    place: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    pruned = SHARED + '[[stages]]\nname = "pruned"\nscheme = "2:4-magnitude"\n'
    small = '[[stages]]\nname = "small"\nscheme = "w8a16-channel"\nmax_loss = "kl+0.000001"\n'
    assert chain(place, pruned + small) == 3
    assert "nothing was saved: stage small: perplexity" in capsys.readouterr().err
    made = (place / "small.partial" / "01-pruned" / "row-1" / "config.json").stat().st_mtime_ns
    shutil.rmtree(place / "small.partial" / "02-small")
    assert chain(place, pruned + small.replace("0.000001", "9"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["allowed"] == "kl+9"
    assert made > 0
    assert trainer.seen == []


def test_a_chain_that_was_changed_above_what_is_done_is_refused(
    place: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.interrupted_at = 1
    assert chain(place, SHARED + STAGES) == 130
    capsys.readouterr()
    assert chain(place, SHARED + STAGES.replace("2:4-magnitude", "50%-magnitude")) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("ridgeline: stage pruned: small.partial/01-pruned was made by another")


FINE = '[[stages]]\nname = "one"\nscheme = "w8a16"\n'


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ("stages = []\n", "stages: there is none"),
        (FINE + FINE, "stages: two are named one"),
        ('[[stages]]\nname = "A b"\nscheme = "w8a16"\n', "name 'A b': give small letters"),
        ('[[stages]]\nname = "one"\n', "stage one: wants one of scheme"),
        ('[[stages]]\nname = "one"\nscheme = "w9a9"\n', "stage one: "),
        ('[[stages]]\nname = "one"\nscheme = "w8a8-int8"\n', "is for image models"),
        (FINE + FINE.replace("one", "two"), "stage two: comes after one"),
        ('[[stages]]\nname = "a"\n[stages.recipe.run]\nstep = 1\n', "stage a: recipe: "),
        (
            '[[stages]]\nname = "a"\n[stages.recipe.images]\npath = "x"\n',
            "stage a: [images]: a chain is of language models",
        ),
        (
            '[[stages]]\nname = "a"\n[stages.recipe.pruning]\nend_step = 9\n',
            "stage a: recipe: [pruning] wants one of share and pattern",
        ),
        (FINE + 'max_loss = "much"\n', "stage one: max_loss much: give ppl+1%"),
    ],
)
def test_a_chain_that_cannot_be_is_one_line(
    stages: str, said: str, place: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = SHARED
    if stages.startswith("stages"):
        shared, stages = stages + SHARED, ""
    assert chain(place, shared + stages) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert said in err
    assert not (place / "small.partial").exists()
    assert trainer.seen == []
