"""`ridgeline predict training` and `validate training`: the JSON contracts, exit codes, pages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run

PAGES = Path(__file__).parents[2] / "docs" / "reference"
ASK = ["predict", "training", "--model", "Llama-3-8B", "--cluster", "64xH100",
       "--seq", "8192", "--global-batch", "128"]  # fmt: skip
TABLE = """source,model,layers,hidden,heads,vocab,seq,gpu,n_gpus,micro_batch,global_batch,\
metric_name,metric_value
lab,GPT-x,24,2048,16,51200,2048,A100,8,4,64,step_time_s,1.0
lab,GPT-x,24,2048,16,51200,2048,A100,8,2,64,step_time_s,1.1
lab,GPT-x,24,2048,16,51200,2048,A101,8,2,64,step_time_s,1.1
"""


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert isinstance(whole, dict)
    return whole


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return path


def test_a_prediction_keeps_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *ASK)
    contract = {"step_seconds", "tokens_per_second_per_gpu", "mfu", "hfu", "memory", "breakdown",
                "interval", "bottleneck", "assumed"}  # fmt: skip
    assert contract <= set(found)
    assert {"stages", "peak_bytes", "verdict"} <= set(found["memory"])
    assert sum(found["breakdown"].values()) == pytest.approx(found["step_seconds"])
    assert found["interval"][0] < found["step_seconds"] < found["interval"][1]
    assert 0 < found["mfu"] <= found["hfu"] < 1


def test_every_key_of_a_prediction_is_in_the_reference(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (PAGES / "predict.md").read_text()
    found = document(capsys, *ASK)
    keys = set(found) | set(found["memory"]) | set(found["breakdown"])
    assert sorted(key for key in keys if f"`{key}`" not in page) == []


def test_a_person_reads_time_memory_and_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ASK) == 0
    out = capsys.readouterr().out
    for words in ("per step", "80 % interval", "MFU", "Memory", "Assumed"):
        assert words in out


@pytest.mark.parametrize(
    ("device", "precision"), [("H100", "bf16"), ("V100-SXM2-32GB", "fp16"), ("K80", "fp32")]
)
def test_a_device_without_bfloat16_trains_in_what_it_has(
    capsys: pytest.CaptureFixture[str], device: str, precision: str
) -> None:
    ask = ["predict", "training", "--model", "gpt2", "--device", device, "--global-batch", "1",
           "--seq", "1024"]  # fmt: skip
    assert document(capsys, *ask)["layout"]["precision"] == precision
    said = document(capsys, *ask, "--precision", "bf16")["assumed"]
    other = [one for one in said if f"has no bf16: {precision} is taken" in one]
    assert len(other) == (precision != "bf16")


def test_a_prediction_is_also_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run([*ASK, "--html", str(page)]) == 0
    assert "<html" in page.read_text()
    assert run([*ASK, "--html", str(tmp_path)]) == 2


@pytest.mark.slow
def test_measured_steps_are_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"step_seconds": 2.4}')
    before = document(capsys, *ASK)
    after = document(capsys, *ASK, "--calibrate", str(path))
    assert after["calibrated"]
    assert abs(after["step_seconds"] - 2.4) < abs(before["step_seconds"] - 2.4)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--tp", "3"], "does not divide the 64 devices"),
        (["--micro-batch", "3"], "not a multiple"),
        (["--recompute", "some"], "recompute"),
        (["--recompute", "none", "--recompute-every", "2"], "set it to full"),
        (["--software", "tensorflow"], "unknown software stack"),
        (["--calibrate", "nowhere.json"], "nowhere.json"),
        (["--pp", "64"], "more than the 32 layers"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], extra: list[str], words: str
) -> None:
    assert run([*ASK, *extra]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_validation_keeps_the_contract(capsys: pytest.CaptureFixture[str], table: Path) -> None:
    found = document(capsys, "validate", "training", str(table))
    assert {"rows", "by_source", "overall"} <= set(found)
    contract = {"row", "source", "model", "gpu", "n_gpus", "metric_name", "published", "predicted",
                "low", "high", "error", "peak_mem_published_gb", "peak_mem_predicted_gb",
                "verdict", "status", "reason"}  # fmt: skip
    assert contract <= set(found["rows"][0])
    assert [row["status"] for row in found["rows"]] == ["ok", "ok", "refused"]
    assert {"median", "p90", "bias", "coverage"} <= set(found["overall"])
    assert found["overall"]["regret_groups"] == 1


def test_every_key_of_a_validation_is_in_the_reference(
    capsys: pytest.CaptureFixture[str], table: Path
) -> None:
    page = (PAGES / "validate.md").read_text()
    found = document(capsys, "validate", "training", str(table))
    keys = set(found) | set(found["rows"][0]) | set(found["overall"])
    keys |= set(found["by_source"]["lab"])
    assert sorted(key for key in keys if f"`{key}`" not in page) == []


def test_a_person_reads_the_error_by_source(
    capsys: pytest.CaptureFixture[str], table: Path
) -> None:
    assert run(["validate", "training", str(table)]) == 0
    out = re.sub(r"\s+", " ", capsys.readouterr().out)
    for words in ("lab", "1 refused", "A101", "choice of layout"):
        assert words in out


@pytest.mark.parametrize("calibration", ["none", "shipped"])
def test_calibrations_have_names(
    capsys: pytest.CaptureFixture[str], table: Path, calibration: str
) -> None:
    words = ["validate", "training", str(table), "--calibration", calibration]
    assert document(capsys, *words)["calibration"] == calibration


def test_a_table_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "training", "nowhere.csv"]) == 2
    assert "nowhere.csv" in capsys.readouterr().err
