"""Whole runs on images: what they learn, and that none of it is lost when they are stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.train.checkpoint.resume_worker import start
from tests.train.images.pictures import BASE, as_arrays, as_folders, small_recipe
from tests.train.processes import run_ranks
from torch import nn
from transformers import AutoModelForImageClassification

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.image_files.preprocess import read_preprocess
from ridgeline.image_files.source import open_images
from ridgeline.records.layout import Layout
from ridgeline.records.training_run import read_log
from ridgeline.train.build import build
from ridgeline.train.check import check
from ridgeline.train.images.statistics import (
    RunningStatistics,
    persistent_buffers,
    synchronise,
)
from ridgeline.train.images.task import image_classification
from ridgeline.train.ranks import Ranks, join, leave
from ridgeline.train.watch.phases import Phases

EXAMPLES = Path(__file__).parents[3] / "examples"
NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
            nn.Linear(200, 10),
        )
"""


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    yield join(Layout())
    leave()


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_arrays(tmp_path_factory.mktemp("arrays"), 200)


RESUMED: dict[str, dict[str, Any]] = {
    "averaged": {
        "optimizer": {"ema": 0.9},
        "images": {"mixup": 0.2, "cutmix": 1.0, "workers": 1},
    },
    "rounded": {"quantisation": {"scheme": "w4a8-int8-rtn", "freeze_step": 4}},
}


def _taken_up_again(argument: tuple[Path, Path]) -> dict[str, Any]:
    folder, path = argument
    ranks = join(Layout(global_batch=16, micro_batch=8))
    found = {}
    for name, tables in RESUMED.items():
        recipe = small_recipe(folder / name, path, **tables)
        buffers: dict[str, torch.Tensor] = {}

        def look(_: int, saver: Any, buffers: dict[str, torch.Tensor] = buffers) -> None:
            modules = saver._state.built.passes.modules
            buffers.update({n: one.clone() for n, one in persistent_buffers(modules).items()})

        straight = start(recipe, folder / name / "straight", ranks, at_step=look)
        ends = [(straight.losses, straight.weights, dict(buffers))]
        first = start(recipe, folder / name / "broken", ranks, stop_at=3)
        second = start(recipe, folder / name / "broken", ranks, at_step=look)
        assert second.began == 3
        ends.append((first.losses + second.losses, second.weights, dict(buffers)))
        found[name] = ends
    return found


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_run_that_is_taken_up_again_ends_as_one_that_was_not(
    tmp_path: Path, arrays: Path
) -> None:
    place = "tests.train.images.test_runs:_taken_up_again"
    (found,) = run_ranks(1, place, (tmp_path, arrays))
    for straight, resumed in found.values():
        assert straight[0] == resumed[0]
        for mine, theirs in zip(straight[1:], resumed[1:], strict=True):
            assert {n for n in mine if not torch.equal(mine[n], theirs[n])} == set()
        assert any("running_var" in name for name in straight[2])


def trained(folder: Path, *options: str) -> dict[str, Any]:
    words = [word for one in options for word in ("--set", one)]
    command = [sys.executable, "-m", "ridgeline.cli.main", "train", "recipe.toml", "--json"]
    done = subprocess.run(
        [*command, "--out", "out", *words],
        cwd=folder, env=_environment(), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _environment() -> dict[str, str]:
    source = str(Path(__file__).parents[3] / "src")
    return os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}


def written(folder: Path, path: Path, **tables: dict[str, Any]) -> Path:
    """The recipe as a file, its model beside it."""
    recipe = small_recipe(folder, path, **tables)
    values = {k: v for k, v in msgspec.to_builtins(recipe).items() if v is not None}
    kept = {name: _given(values[name], BASE.get(name, {}) | tables.get(name, {})) for name in
            ("images", "layout", "optimizer", "run", "checkpoint", "model")}  # fmt: skip
    kept["images"]["path"] = str(path)
    kept["model"] = {"config": values["model"]["config"]}
    (folder / "recipe.toml").write_bytes(msgspec.toml.encode(kept))
    return folder


def _given(values: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in names}


@pytest.mark.multiprocess
@pytest.mark.slow
def test_the_shipped_recipe_learns_the_digits_and_what_it_saves_answers_the_same(
    tmp_path: Path,
) -> None:
    script = EXAMPLES / "recipes" / "digits_images.py"
    subprocess.run([sys.executable, script, tmp_path / "digits"], check=True)
    recipe = EXAMPLES / "recipes" / "digits-resnet.toml"
    out = tmp_path / "run"
    path = f"images.path={tmp_path / 'digits'}"
    assert run(["train", str(recipe), "--set", path, "--out", str(out)]) == 0
    result = json.loads((out / "run.json").read_text())
    assert result["top1"] >= 0.97
    model = AutoModelForImageClassification.from_pretrained(out / "model").eval()
    assert (model.config.num_labels, model.config.num_channels) == (10, 1)
    assert read_preprocess(out / "model") is not None


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_with_the_same_images_and_ends_the_same(
    tmp_path: Path, arrays: Path
) -> None:
    tables = {
        "run": {"steps": 60, "log_every": 1},
        "images": {"workers": 2},
        "checkpoint": {"every_steps": 5},
    }
    straight = written(tmp_path / "a", arrays, **tables)
    trained(straight)
    broken = written(tmp_path / "b", arrays, **tables)
    command = [sys.executable, "-m", "ridgeline.cli.main", "train", "recipe.toml", "--out", "out"]
    process = subprocess.Popen(
        command, cwd=broken, env=_environment(), start_new_session=True, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 90
    while len(read_log(broken / "out")) < 12:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = subprocess.run(
        ["pgrep", "-f", f"worker {broken / 'out'}|worker out"],
        capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    for one in [process.pid, *map(int, workers)]:
        os.kill(one, signal.SIGKILL)
    process.wait()
    trained(broken)
    losses = [{line.step: line.loss for line in read_log(one / "out")} for one in
              (straight, broken)]  # fmt: skip
    assert losses[0] == losses[1]


def _over_ranks(argument: tuple[Path, Path, dict[str, Any]]) -> dict[str, torch.Tensor]:
    folder, path, given = argument
    dp, plain = given.get("dp", 1), given.pop("plain", False)
    layout = {"dp": dp, "global_batch": 16, "micro_batch": 16 // dp} | given
    ranks = join(Layout(**layout))
    images = {"sync_batch_norm": dp > 1 and not (plain or given.get("zero"))}
    recipe = small_recipe(folder / f"config{ranks.rank}", path, layout=layout, images=images)
    return start(recipe, folder / f"out{len(given)}{dp}", ranks).weights


@pytest.mark.slow
@pytest.mark.multiprocess
def test_batch_norms_over_two_ranks_train_as_one_does_on_the_whole_batch(
    tmp_path: Path, arrays: Path
) -> None:
    place = "tests.train.images.test_runs:_over_ranks"
    of_two = run_ranks(2, place, (tmp_path, arrays, {"dp": 2}))
    (whole,) = run_ranks(1, place, (tmp_path, arrays, {}))
    for name, weight in whole.items():
        torch.testing.assert_close(of_two[0][name], weight, rtol=1e-3, atol=2e-4)
        assert torch.equal(of_two[0][name], of_two[1][name])


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("zero", [1, 3])
def test_shards_train_as_whole_weights_do(tmp_path: Path, arrays: Path, zero: int) -> None:
    place = "tests.train.images.test_runs:_over_ranks"
    layout = {"dp": 2, "zero": zero, "fsdp": 2}
    shards = run_ranks(2, place, (tmp_path, arrays, layout))
    assert all(torch.equal(one, shards[1][name]) for name, one in shards[0].items())
    whole = run_ranks(2, place, (tmp_path, arrays, {"dp": 2, "cp": 1, "tp": 1, "plain": True}))
    for name, one in whole[0].items():
        torch.testing.assert_close(shards[0][name], one, rtol=1e-3, atol=2e-4)


def test_statistics_of_a_checkpoint_stay_while_the_next_pass_changes_them(ranks: Ranks) -> None:
    """They are written beside it."""
    model = nn.Sequential(nn.BatchNorm2d(3))
    part = RunningStatistics([model], ranks)
    saved, first = part.state_dict().private, model[0].running_mean.clone()
    model(torch.rand(4, 3, 5, 5))
    assert not torch.equal(model[0].running_mean, first)
    assert torch.equal(saved["0.running_mean"], first)
    assert saved["0.num_batches_tracked"] == 0


def test_a_batch_norm_over_ranks_is_torchs_where_there_is_one(ranks: Ranks) -> None:
    del ranks
    torch.manual_seed(0)
    plain, ours = nn.BatchNorm2d(3), nn.Sequential(nn.BatchNorm2d(3))
    synchronise(ours)
    for _ in range(3):
        x = torch.randn(4, 3, 5, 5)
        torch.testing.assert_close(ours(x), plain(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[0].running_var, plain.running_var)
    torch.testing.assert_close(ours.eval()(x), plain.eval()(x), rtol=1e-4, atol=1e-5)


def test_a_model_of_a_script_is_trained_saved_and_trained_again(
    tmp_path: Path, arrays: Path, ranks: Ranks
) -> None:
    script = tmp_path / "net.py"
    script.write_text(NET)
    model = {"config": "", "script": f"{script}:Net"}
    recipe = small_recipe(tmp_path, arrays, model=model)
    task = image_classification(recipe, ranks, lambda _: None)
    (module,) = build(task.recipe, ranks, Phases(ranks.device)).passes.modules
    with torch.no_grad():
        module[1].running_mean.add_(0.5)
    task.save([module], tmp_path / "saved")
    again = small_recipe(tmp_path, arrays, model=model | {"checkpoint": str(tmp_path / "saved")})
    task = image_classification(again, ranks, lambda _: None)
    (loaded,) = build(task.recipe, ranks, Phases(ranks.device)).passes.modules
    for name, one in module.state_dict().items():
        assert torch.equal(one, loaded.state_dict()[name]), name


def test_a_saved_classifier_is_loaded_with_its_statistics(tmp_path: Path, ranks: Ranks) -> None:
    path = as_folders(tmp_path / "folders", 60)
    task = image_classification(small_recipe(tmp_path, path), ranks, lambda _: None)
    (module,) = build(task.recipe, ranks, Phases(ranks.device)).passes.modules
    module(next(task.feed)[0].pixels)
    task.save([module], tmp_path / "saved")
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path / "saved").eval()
    view = read_preprocess(tmp_path / "saved")
    assert view is not None
    seen = view(open_images("x", path).read(0))[:1]
    pixels = torch.from_numpy(seen)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(pixels).logits, module.eval()(pixels).logits)
    again = small_recipe(tmp_path, path, model={"checkpoint": str(tmp_path / "saved")})
    (third,) = build(
        image_classification(again, ranks, lambda _: None).recipe, ranks, Phases(ranks.device)
    ).passes.modules
    for name, one in module.state_dict().items():
        assert torch.equal(one, third.state_dict()[name]), name


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ({"layout": {"tp": 2}}, "tp = 2 with"),
        ({"layout": {"precision": "fp8"}}, "for matrices"),
        ({"layout": {"dp": 2, "fsdp": 2, "zero": 1, "precision": "bf16"}}, "with zero 1"),
        ({"precision": {"weights": "bf16"}}, "is for language models"),
        ({"adapter": {}}, "for language models"),
        ({"optimizer": {"name": "muon"}}, "turns matrices"),
        ({"optimizer": {"schedule": "step"}}, "final_learning_rate"),
        ({"quantisation": {"scheme": "w8a8-int8-rtn", "begin_step": 9}}, "nothing would be"),
    ],
)
def test_what_is_not_for_images_is_refused(
    tmp_path: Path, arrays: Path, tables: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        check(small_recipe(tmp_path, arrays, **tables))


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ({"config": "resnet-51"}, "resnet-50"),
        ({"config": "", "script": "nowhere.py:Net"}, "nowhere.py: no such file"),
        ({"config": "", "script": "Net"}, "is not FILE.py:NAME"),
    ],
)
def test_a_model_that_is_not_there_is_refused(
    tmp_path: Path, arrays: Path, ranks: Ranks, model: dict[str, Any], named: str
) -> None:
    recipe = small_recipe(tmp_path, arrays, model=model)
    with pytest.raises(InputError, match=named):
        build(recipe, ranks, Phases(ranks.device))


def test_a_mistyped_key_of_images_is_one_line_that_names_it(
    tmp_path: Path, arrays: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path, arrays)
    assert run(["train", str(folder / "recipe.toml"), "--set", "images.sise=3"]) == 2
    assert "sise" in capsys.readouterr().err
    assert run(["train", str(folder / "recipe.toml"), "--set", "images.path=gone"]) == 2
    assert "gone: no such file or folder" in capsys.readouterr().err
