"""`ridgeline compress`: rows, the gate, the search, and one line on bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run

LIBRARY = Path(__file__).parents[2] / "examples/models/library"
SOURCES = Path(json.__file__).parent


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A text to calibrate on, and one to judge on."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "calibration.txt").write_text((SOURCES / "decoder.py").read_text())
    (folder / "held.txt").write_text((SOURCES / "encoder.py").read_text()[:4000])
    return {"calibration": str(folder / "calibration.txt"), "held": str(folder / "held.txt")}


def test_rows_are_measured_and_what_is_saved_is_what_was_judged(
    texts: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small"
    words = ["compress", str(LIBRARY), "--scheme", "2:4-magnitude", "--scheme", "w8a16-channel"]
    words += ["--text", texts["held"], "--context", "128", "--device", "cpu", "--no-speed"]
    assert run([*words, "--out", str(out), "--json"]) == 0
    ledger: dict[str, Any] = json.loads(capsys.readouterr().out)
    given, pruned, rounded = ledger["rows"]
    assert [row["scheme"] for row in ledger["rows"]] == [
        "as given", "2:4-magnitude", "w8a16-channel",
    ]  # fmt: skip
    assert rounded["disk_bytes"] < 0.6 * given["disk_bytes"]
    assert pruned["divergence"]["kl_mean"] > 0.1
    assert rounded["quality"]["perplexity"] == pytest.approx(
        pruned["quality"]["perplexity"], rel=0.02
    )
    assert json.loads((out / "ledger.json").read_text())["rows"] == ledger["rows"]
    assert "2:4-magnitude" in (out / "report.html").read_text()
    assert not out.with_name("small.partial").exists()
    evaluated = ["evaluate", str(out), "--text", texts["held"], "--reference", str(LIBRARY)]
    assert run([*evaluated, "--context", "128", "--device", "cpu", "--no-speed", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["quality"] == rounded["quality"]
    assert again["divergence"] == rounded["divergence"]


def test_what_lost_too_much_is_not_saved_and_three_layers_are_named(
    texts: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small"
    words = ["compress", str(LIBRARY), "--scheme", "w3a16-channel", "--text", texts["held"]]
    words += ["--context", "128", "--device", "cpu", "--no-speed", "--max-loss", "ppl+0.1%"]
    assert run([*words, "--out", str(out), "--json"]) == 3
    printed = capsys.readouterr()
    ledger = json.loads(printed.out)
    costs = [one["kl"] for one in ledger["sensitive"]]
    assert costs == sorted(costs, reverse=True)
    assert len(costs) == 3
    assert all(one["layer"] in printed.err for one in ledger["sensitive"])
    assert printed.err.strip().splitlines()[-1].startswith("ridgeline: nothing was saved: perplex")
    assert list(tmp_path.iterdir()) == []


def test_a_search_keeps_its_target_with_more_than_one_scheme(
    texts: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mixed"
    words = ["compress", str(LIBRARY), "--target", "ppl+2%", "--text", texts["held"]]
    words += ["--scheme", "w4a16-g32", "--scheme", "w8a16-channel", "--context", "128"]
    assert run([*words, "--device", "cpu", "--no-speed", "--out", str(out), "--json"]) == 0
    ledger = json.loads(capsys.readouterr().out)
    given, mixed = ledger["rows"]
    assert mixed["quality"]["loss"] <= given["quality"]["loss"] + 0.0199
    assert mixed["disk_bytes"] < 0.5 * given["disk_bytes"]
    found = ledger["search"]
    assert found["attempts"][-1]["allowed"]
    # Layers that engines compute as one product have one scheme.
    assert len(found["chosen"]) == 4 * 4
    groups = json.loads((out / "config.json").read_text())["quantization_config"]["config_groups"]
    targets = [layer for group in groups.values() for layer in group["targets"]]
    assert len(targets) == len(set(targets))
    assert {one["scheme"] for one in found["chosen"]} >= {"w4a16-g32", "w8a16-channel"}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--scheme", "w4a17"], "w4a17"),
        ([], "say what to do"),
        (["--scheme", "w8a16", "--max-loss", "1%"], "--max-loss 1%"),
        (["--scheme", "w8a16", "--target", "ppl+1%", "--max-loss", "ppl+1%"], "leave --max-loss"),
        (["--scheme", "w4a16-gptq"], "--calibration"),
        (["--scheme", "w8a16"], "--text FILE is missing"),
        (["--scheme", "w8a16", "--text", "/nowhere.txt"], "--text /nowhere.txt"),
        (["--export", "gguf"], "--export gguf: not offered; did you mean gguf-"),
        (["--target", "ppl+1%", "--for", "fame"], "--for fame"),
        (["--scheme", "w8a16", "--max-loss", "ppl+1%", "--unjudged"], "--unjudged"),
        (["--scheme", "w4a16", "--text", __file__, "--context", "64"], "down_proj"),
        (["--target", "ppl+1%", "--scheme", "w4a16-awq"], "layer by layer"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compress", str(LIBRARY), "--out", str(tmp_path / "new"), *words]) == 2
    said = [one for one in capsys.readouterr().err.splitlines() if one.startswith("ridgeline: ")]
    assert len(said) == 1
    assert line in said[0]
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_the_way_is_named(
    texts: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compress", str(LIBRARY), "--scheme", "w8a16-channel", "--text", texts["held"]]
    taken = tmp_path / "taken"
    taken.mkdir()
    assert run([*words, "--out", str(taken)]) == 2
    assert "exists already" in capsys.readouterr().err
    left = tmp_path / "new.partial"
    left.mkdir()
    (left / "order.json").write_text('["another"]')
    assert run([*words, "--out", str(tmp_path / "new")]) == 2
    assert "add --resume" in capsys.readouterr().err
    assert run([*words, "--out", str(tmp_path / "new"), "--resume"]) == 2
    assert "another command" in capsys.readouterr().err


def test_a_directory_that_is_no_model_is_named(
    texts: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    words = ["--text", texts["held"], "--scheme", "w8a16-channel", "--out", str(tmp_path / "new")]
    assert run(["compress", str(bare), *words]) == 2
    assert "no config.json" in capsys.readouterr().err
    shutil.copy(LIBRARY / "config.json", bare)
    assert run(["compress", str(bare), *words]) == 2
    assert "no tokenizer" in capsys.readouterr().err
