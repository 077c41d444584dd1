"""`ridgeline plan training` and `explain`: JSON contracts, files, one line on bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ridgeline.cli.main import run
from ridgeline.records.plan import Plan
from ridgeline.records.recipe_file import read_recipe

ASK = ["plan", "training", "--model", "layers=16,hidden=2048,heads=16,vocab=32000",
       "--cluster", "8xH100", "--global-batch", "64", "--seq", "2048"]  # fmt: skip
PAGES = Path(__file__).parents[2] / "docs" / "reference"


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert isinstance(whole, dict)
    return whole


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One plan with everything that it can write."""
    home = tmp_path_factory.mktemp("plan")
    files = ["--write", str(home / "recipe.toml"), "--html", str(home / "plan.html")]
    assert run([*ASK, "--tokens", "2B", *files]) == 0
    return home


def test_the_document_keeps_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    whole = document(capsys, *ASK, "--tokens", "2B")
    assert {"best", "runners_up", "pareto", "searched", "seconds"} <= set(whole)
    assert {"layout", "estimate"} <= set(whole["best"])
    assert whole["bill"]["tokens"] == 2e9
    assert msgspec.convert(whole, Plan).best.layout.num_devices == 8


def test_every_key_of_the_plan_is_in_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    page = (PAGES / "plan.md").read_text()
    whole = document(capsys, *ASK, "--tokens", "2B")
    keys = set(whole) | set(whole["bill"]) | {k for one in whole["launch"] for k in one}
    for name in ("runners_up", "pareto", "knobs", "what_if"):
        keys |= set(whole[name][0])
    assert sorted(key for key in keys if f"`{key}`" not in page and f'"{key}"' not in page) == []


def test_a_person_reads_the_best_the_losers_and_how_to_run_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([*ASK, "--tokens", "2B"]) == 0
    out = capsys.readouterr().out
    for words in ("why they lose", "What would change the answer", "Time against memory",
                  "torchtitan", "megatron-lm", "nemo", "deepspeed", "fsdp", "device-hours",
                  "2B tokens", "layouts judged"):  # fmt: skip
        assert words in out, words
    copied = out[out.index("fsdp") :]
    assert "gradient_accumulation_steps=" in copied
    assert "gradient_accumulation_steps=\n" not in copied


def test_the_recipe_is_one_that_reads_back(folder: Path) -> None:
    recipe = read_recipe(folder / "recipe.toml")
    assert recipe.layout.num_devices == 8
    assert recipe.data.seq == 2048


def test_the_page_stands_alone(folder: Path) -> None:
    page = (folder / "plan.html").read_text()
    assert "8xH100-SXM-80GB" in page
    assert "<script src" not in page
    assert "<link" not in page


@pytest.mark.slow
def test_days_find_the_smallest_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    ask = [word.replace("8xH100", "64xH100") for word in ASK]
    whole = document(capsys, *ask, "--tokens", "300B", "--days", "10")
    assert int(whole["cluster"].partition("x")[0]) < 64
    assert whole["bill"]["days"] <= 10
    assert [size["cluster"] for size in whole["clusters"]] == [whole["cluster"]]
    assert run([*ask, "--tokens", "300B", "--days", "10", "--objective", "cost"]) == 0
    assert "Clusters that meet the date" in capsys.readouterr().out


@pytest.mark.slow
def test_overrides_of_the_cluster_change_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    ask = [word.replace("8xH100", "32xH100") for word in ASK]
    fast = document(capsys, *ask)
    slow = document(capsys, *ask, "--network", "1", "--oversubscription", "4")
    step = "step_seconds"
    assert slow["best"]["estimate"][step] > fast["best"]["estimate"][step]


def test_a_plan_with_everything_on_disk_is_written_for_deepspeed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask = [*ASK, "--offload", "all-on-disk", "--disk-bandwidth"]
    slow, fast = document(capsys, *ask, "0.5"), document(capsys, *ask, "5")
    best = slow["best"]
    assert (best["layout"]["offload"], best["layout"]["zero"]) == ("all-on-disk", 3)
    assert best["estimate"]["step_seconds"] > fast["best"]["estimate"]["step_seconds"]
    words = {launch["framework"]: launch["files"] for launch in slow["launch"]}
    zero = json.loads(words["deepspeed"]["ds_config.json"])["zero_optimization"]
    assert zero["offload_param"]["device"] == "nvme"


def test_a_recipe_of_a_plan_with_state_on_disk_names_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ridgeline.plan.training.disk.cached_storage",
        lambda _: SimpleNamespace(sequential_bytes_per_second=1e9, write_bytes_per_second=1e9),
    )
    recipe = tmp_path / "recipe.toml"
    ask = [*ASK, "--offload", "optimizer-on-disk", "--disk", str(tmp_path)]
    assert run([*ask, "--write", str(recipe)]) == 0
    assert read_recipe(recipe).memory.offload_path == str(tmp_path)


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--disk-bandwidth", "2"], "go with --offload"),
        (["--offload", "all-on-disk", "--write", "recipe.toml"], "DeepSpeed"),
        (["--offload", "optimizer-on-disk", "--write", "recipe.toml"], "--disk DIR"),
        (["--cluster", "8xH1000"], "did you mean"),
        (["--cluster", "H100"], "write a count"),
        (["--cluster", "8xH100,8xA100"], "name one"),
        (["--model", "Llama-3-8"], "Llama-3-8B"),
        (["--global-batch", "0"], "global batch is 0"),
        (["--global-batch", "many"], "valid integer"),
        (["--seq", "0"], "--seq 0: it must be 1 or more"),
        (["--objective", "speed"], "not one of 'time', 'cost', 'memory'"),
        (["--precision", "bf61"], "unknown precision"),
        (["--tokens", "lots"], "--tokens lots"),
        (["--tokens", "0"], "--tokens 0"),
        (["--days", "3"], "--days needs --tokens"),
        (["--days", "0", "--tokens", "1B"], "must be above 0"),
        (["--network", "-1"], "give above 0"),
        (["--oversubscription", "0.5"], "1 or more"),
        (["--domain-size", "0"], "1 or more"),
        (["--write", "/dev/null/recipe.toml"], "recipe.toml"),
        (["--html", "/dev/null/page.html"], "--html"),
        (["--model", "Llama-3.1-405B"], "keeps on NVMe"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*ASK, *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert message in captured.err


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two plans: the same model with and without a slow network."""
    home = tmp_path_factory.mktemp("two")
    paths = home / "fast.json", home / "slow.json"
    ask = [word.replace("8xH100", "32xH100") for word in ASK]
    for path, more in zip(paths, ([], ["--network", "1"]), strict=True):
        from contextlib import redirect_stdout

        with path.open("w") as file, redirect_stdout(file):
            assert run([*ask, *more, "--json"]) == 0
    return paths


def test_a_plan_needs_neither_torch_nor_plotly() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'plotly', 'transformers', 'pandas', 'scipy'):\n"
        "    sys.modules[name] = None\n"  # importing it fails, as if it were not installed
        "from ridgeline.cli.main import run\n"
        f"sys.exit(run({[*ASK, '--json']!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["best"]


def test_explain_names_the_faster_and_the_terms(
    two: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = document(capsys, "explain", *map(str, two))
    assert whole["faster"] == "fast"
    assert whole["times_faster"] > 1
    page = (PAGES / "explain.md").read_text()
    missing = [key for key in {*whole, *whole["terms"][0]} if f"`{key}`" not in page]
    assert missing == []
    assert run(["explain", *map(str, two)]) == 0
    out = capsys.readouterr().out
    assert "fast is " in out
    assert "gemm" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "a.json"], "B.json"),
        (["explain", "a.json", "b.json"], "a.json: no such file"),
        (["explain", __file__, __file__], "not JSON"),
    ],
)
def test_bad_files_for_explain_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
