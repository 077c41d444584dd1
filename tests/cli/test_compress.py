"""`ridgeline compress`: rows, the gate, the search, and one line on bad input."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
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
    (folder / "held.txt").write_text((SOURCES / "encoder.py").read_text()[:900])
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
    zeros = pruned["zeros"]
    assert zeros["two_of_four"] == zeros["matrices"] == 28
    assert 2 * zeros["matrix_zeros"] == zeros["matrix_weights"] == 802_816
    assert rounded["zeros"]["matrix_zeros"] >= zeros["matrix_zeros"]
    assert given["zeros"]["matrix_zeros"] == 0
    assert rounded["quality"]["perplexity"] == pytest.approx(
        pruned["quality"]["perplexity"], rel=0.02
    )
    assert json.loads((out / "ledger.json").read_text()) == ledger
    assert "2:4-magnitude" in (out / "report.html").read_text()
    assert not out.with_name("small.partial").exists()
    evaluated = ["evaluate", str(out), "--text", texts["held"], "--reference", str(LIBRARY)]
    assert run([*evaluated, "--context", "128", "--device", "cpu", "--no-speed", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["quality"] == rounded["quality"]
    assert again["divergence"] == rounded["divergence"]
    assert (again["zeros"], again["outliers"]) == (rounded["zeros"], rounded["outliers"])


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.sweep(every=5)
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
        (["--target", "ppl+1%", "--for", "fame"], "'fame' is not one of 'size', 'latency'"),
        (["--scheme", "w8a16", "--max-loss", "ppl+1%", "--unjudged"], "--unjudged"),
        (["--scheme", "w4a16", "--text", __file__, "--context", "64"], "down_proj"),
        (["--target", "ppl+1%", "--scheme", "w4a16-awq"], "layer by layer"),
        (["--scheme", "w8a16", "--scheme", "2:4", "--text", __file__], "give prunings first"),
        (["--scheme", "w8a8", "--scheme", "w4a16", "--text", __file__], "give prunings first"),
        (["--scheme", "w8a16", "--text", __file__, "--device", "tpu"], "--device tpu"),
        (["--export", "2:4"], "no matrix is 2:4"),
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


def test_a_chain_given_as_a_model_names_the_command_of_chains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = tmp_path / "chain.toml"
    chain.write_text("model = 'm'\n")
    assert run(["compress", str(chain), "--out", str(tmp_path / "new")]) == 2
    assert f"ridgeline compress chain {chain} --out" in capsys.readouterr().err


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
    for name, missing in (
        ("config.json", "neither model.safetensors"),
        ("model.safetensors", "no tokenizer"),
    ):
        shutil.copy(LIBRARY / name, bare)
        assert run(["compress", str(bare), *words]) == 2
        assert missing in capsys.readouterr().err


@pytest.mark.slow
def test_an_export_that_is_refused_leaves_the_model_the_ledger_and_other_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small"
    words = ["compress", str(LIBRARY), "--scheme", "w8a16-channel", "--unjudged", "--json"]
    assert run([*words, "--export", "2:4", "--export", "gguf-q8_0", "--out", str(out)]) == 2
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1].startswith("ridgeline: ")
    assert "no matrix is 2:4" in printed.err
    ledger = json.loads(printed.out)
    assert ledger == json.loads((out / "ledger.json").read_text())
    assert ledger["exports"] == {"gguf-q8_0": str(out / "model.q8_0.gguf")}
    assert (out / "model.q8_0.gguf").exists()
    assert ledger["rows"][1]["zeros"]["parameters"] == 1_066_112


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_what_was_done_is_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small"
    words = ["compress", str(LIBRARY), "--scheme", "w8a16-channel", "--unjudged"]
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    blocks = []
    for limit in (100_000, 400_000):  # less than a block's file; enough for them, not for the model
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            assert run([*words, "--out", str(out), *(["--resume"] if blocks else [])]) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        last = capsys.readouterr().err.splitlines()[-1]
        assert re.match("ridgeline: .*File too large.* with --resume goes on from it", last)
        blocks.append(len(list(tmp_path.glob("small.partial/row-1.blocks/block-*.safetensors"))))
    assert blocks == [0, 4]
    assert run([*words, "--out", str(out), "--resume"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_ctrl_c_before_anything_was_done_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ridgeline.compress.apply.prepared", interrupted)
    words = ["compress", str(LIBRARY), "--scheme", "w8a16-channel", "--unjudged"]
    assert run([*words, "--out", str(tmp_path / "new")]) == 130
    assert capsys.readouterr().err.strip() == "ridgeline: interrupted; nothing was left behind"
    assert list(tmp_path.iterdir()) == []


_BESIDE_OTHERS = """
import os
from ridgeline.hardware import core_pressure
core_pressure.share_waited = lambda source=None: 0.6
from ridgeline.cli.main import run
run(["compress", "nowhere", "--scheme", "w8a16", "--out", "anywhere"])
print(os.environ.get("OMP_WAIT_POLICY"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "waiting"), [("2", "passive"), ("1", "None")])
def test_threads_sleep_while_they_wait_where_others_want_the_cores(
    threads: str, waiting: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    environment.pop("OMP_WAIT_POLICY", None)
    done = subprocess.run(
        [sys.executable, "-c", _BESIDE_OTHERS],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == waiting
    assert ("threads sleep" in done.stderr) is (waiting == "passive")
