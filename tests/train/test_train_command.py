"""`ridgeline train` from end to end: real processes, real text, a model that transformers loads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.processes import run_ranks
from tests.train.small_run import write_small_run
from tests.warm_scripts import start_worker_warm

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.measure.compare.comparison import compare_runs
from ridgeline.measure.compare.runs import read_run
from ridgeline.records.recipe_file import read_recipe
from ridgeline.records.training_run import read_log
from ridgeline.train import one_rank
from ridgeline.train.ending import what_failed
from ridgeline.train.folder import RESULT

pytestmark = pytest.mark.multiprocess
SOURCE = str(Path(__file__).parents[2] / "src")
TABLES = """
[run]
steps = 12
log_every = 4
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe with its model and its text beside it."""
    return write_small_run(tmp_path_factory.mktemp("train"), TABLES)


def train(folder: Path, *options: str, **kwargs: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ridgeline.cli.main", "train", "recipe.toml", *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


@pytest.fixture(scope="module")
def of_one_process(folder: Path) -> dict[str, Any]:
    """What a run of one process says of itself; a rank without the command around it."""
    run_ranks(1, "tests.train.small_run:train_alone", folder)
    return json.loads((folder / "out1" / RESULT).read_text())


def trained(folder: Path, *options: str) -> dict[str, Any]:
    started = train(folder, "--json", *options)
    output, errors = started.communicate(timeout=120)
    assert started.returncode == 0, errors
    return json.loads(output)


def test_a_run_says_where_it_ended_and_transformers_loads_its_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    monkeypatch.setattr(one_rank, "start_worker", start_worker_warm)
    monkeypatch.chdir(folder)
    assert run(["train", "recipe.toml", "--json", "--out", "alone"]) == 0
    said = json.loads(capsys.readouterr().out)
    log = read_log(folder / "alone")
    assert (said["processes"], said["steps"]) == (1, 12)
    assert [line.step for line in log][-3:] == [4, 8, 12]
    assert said["final_loss"] < log[0].loss
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "alone" / "model")
    assert read_recipe(folder / "alone" / "recipe.toml").run.steps == 12
    assert sum(one.numel() for one in model.parameters()) > 0


def test_the_command_loads_no_torch_before_its_ranks_do(folder: Path) -> None:
    code = (
        "import os, sys\n"
        "from ridgeline.cli.main import run\n"
        "from ridgeline.train import start\n"
        "start._Ranks.run = lambda *_: os._exit(8 if 'torch' in sys.modules else 7)\n"
        "run(['train', 'recipe.toml', '--out', 'no-torch'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, check=False)
    assert done.returncode == 7


@pytest.mark.slow
def test_a_run_of_one_process_that_starts_cold_ends_in_its_result(folder: Path) -> None:
    assert trained(folder, "--out", "cold")["steps"] == 12


@pytest.mark.slow
def test_two_processes_end_where_one_does_and_transformers_loads_the_model(
    folder: Path, of_one_process: dict[str, Any]
) -> None:
    import transformers

    of_two = trained(folder, "--out", "out2", "--set", "layout.dp=2")
    for ranks, said in ((1, of_one_process), (2, of_two)):
        assert said["processes"] == ranks
        assert said["steps"] == 12
        assert [line.step for line in read_log(folder / f"out{ranks}")][-3:] == [4, 8, 12]
    for figure in ("final_loss", "validation_loss"):
        assert of_one_process[figure] == pytest.approx(of_two[figure], rel=1e-4)
    assert of_one_process["final_loss"] < read_log(folder / "out1")[0].loss
    results = [str(folder / f"out{ranks}" / RESULT) for ranks in (1, 2)]
    comparison = compare_runs(*map(read_run, map(Path, results)))
    assert (comparison.reference.record, comparison.new.steps) == ("training-run", 12)
    assert any("number of processes: 1 → 2" in warning for warning in comparison.warnings)

    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "out2" / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "out2" / "model")
    tokens = tokenizer("def encode(self, o):", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert model(input_ids=tokens, labels=tokens).loss < 6.5
    assert read_recipe(folder / "out2" / "recipe.toml").layout.dp == 2


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["layout.dp=3"], "global batch 8"),
        (["layout.tp=3", "layout.dp=1"], "heads"),
        (["data.column=body", "data.path=model"], "model"),
        (["run.stepps=3"], "stepps"),
    ],
)
def test_what_cannot_be_trained_is_one_line_and_exit_code_2(
    folder: Path,
    options: list[str],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    words = [word for option in options for word in ("--set", option)]
    assert run(["train", "recipe.toml", "--out", "bad", *words]) == 2
    errors = capfd.readouterr().err
    (last,) = [line for line in errors.splitlines() if line.startswith("ridgeline:")]
    assert named in last
    assert "Traceback" not in errors


def test_without_a_folder_the_run_lives_below_where_the_command_is_and_says_so(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from ridgeline.train import start

    seen = []

    def begins(_: object, where: Path, *__: object, **___: object) -> None:
        seen.append(where)
        raise InputError("far enough")

    monkeypatch.setattr(start, "train_recipe", begins)
    monkeypatch.chdir(tmp_path)
    beside = sorted(folder.iterdir())
    assert run(["train", str(folder / "recipe.toml")]) == 2
    assert "the run lives in runs/recipe; --out FOLDER" in capsys.readouterr().err
    assert run(["train", str(folder / "recipe.toml"), "--out", "there"]) == 2
    assert "lives in" not in capsys.readouterr().err
    assert seen == [Path("runs/recipe"), Path("there")]
    assert sorted(folder.iterdir()) == beside


@pytest.mark.slow
def test_a_stack_that_tune_proved_is_applied_to_every_rank(
    folder: Path, of_one_process: dict[str, Any]
) -> None:
    (folder / "stack.toml").write_text('[[technique]]\nname = "bf16-autocast"\n')
    stacked = trained(folder, "--out", "stacked", "--set", "run.stack=stack.toml")
    losses = (of_one_process["final_loss"], stacked["final_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
    assert losses[0] != losses[1]  # bf16 products round


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_ends_every_rank_and_says_where_the_run_lies(folder: Path, ranks: int) -> None:
    out = f"stopped{ranks}"
    options = ("--out", out, "--set", f"layout.dp={ranks}", "--set", "run.steps=100000")
    started = train(folder, *options, preexec_fn=_heed_interrupts)
    deadline = time.monotonic() + 60
    while not read_log(folder / out):
        assert time.monotonic() < deadline, "no step was written down"
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "interrupted" in errors.splitlines()[-1]
    search = ["pgrep", "-f", str(folder / out)]
    assert not subprocess.run(search, capture_output=True, check=False).stdout


def _heed_interrupts() -> None:
    """A shell that starts jobs in the background makes them deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.slow
def test_what_torchrun_refuses_before_a_rank_begins_is_told_in_its_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_MONITOR_INTERVAL", "soon")  # as its --monitor-interval
    started = train(folder, "--out", "refused", "--set", "layout.dp=2")
    _, errors = started.communicate(timeout=60)
    assert started.returncode == 1
    (line,) = [one for one in errors.splitlines() if one.startswith("ridgeline: torchrun")]
    assert "torchrun ended with 2 before a rank began" in line
    assert "invalid float value: 'soon'" in line
    assert line.endswith("see refused/start-here.log")


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_the_last_line_of_a_traceback_is_told_with_and_without_torchs_prefix(
    tmp_path: Path, prefix: str
) -> None:
    log = tmp_path / "logs" / "run" / "attempt_0" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    lines = ["Traceback (most recent call last):", "  File …", "ValueError: no such thing"]
    log.write_text("".join(f"{prefix}{line}\n" for line in lines))
    assert "a rank ended with 1: ValueError: no such thing; see" in str(what_failed(tmp_path, 1))
