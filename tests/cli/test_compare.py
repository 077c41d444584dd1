"""`ridgeline compare`, driven as a program."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import typer
from tests.report.records import a_ledger, a_profile, findings, step_samples
from typer.testing import CliRunner

from ridgeline.cli.compare import compare
from ridgeline.errors import InputError, Regression

app = typer.Typer(add_completion=False)
app.command()(compare)

MEDIAN_SECONDS = 0.2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    doctor = {"findings": findings(), "verdict": "compute-bound", "limit_fraction": 0.5}
    doctor["profile"] = a_profile(MEDIAN_SECONDS)
    runs = {
        "a": doctor,
        "same": a_profile(
            MEDIAN_SECONDS, step_samples=step_samples(MEDIAN_SECONDS, count=90, seed=7)
        ),
        "slow": a_profile(1.2 * MEDIAN_SECONDS),
        "tuned": a_ledger(),
    }
    for name, record in runs.items():
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(record))
    return tmp_path


def run(*arguments: str) -> tuple[str, BaseException | None]:
    result = CliRunner().invoke(app, list(arguments))
    return result.stdout, result.exception


def test_no_difference_ends_well(folder: Path) -> None:
    output, error = run("a.json", "same.json")
    assert error is None
    assert output.startswith("no difference beyond noise and 2 %")


def test_a_slower_run_is_a_regression_and_names_the_phase(folder: Path) -> None:
    output, error = run("a.json", "slow.json")
    assert isinstance(error, Regression)
    assert error.exit_code == 3
    assert "1.20× slower" in output
    assert re.fullmatch(r"slow\.json is 1\.20× slower \[.*\]; backward takes .* more.*", str(error))


def test_a_tuned_ledger_is_faster_than_its_baseline(folder: Path) -> None:
    output, error = run("a.json", "tuned.json")
    assert error is None
    assert re.match(r"2\.1\d× faster", output)


def test_the_threshold_lets_a_known_slowdown_pass(folder: Path) -> None:
    _, error = run("a.json", "slow.json", "--threshold", "0.5")
    assert error is None


def test_json_is_one_document_with_the_documented_keys(folder: Path) -> None:
    output, error = run("a.json", "slow.json", "--json", "--history", "h.jsonl")
    assert isinstance(error, Regression)
    document = json.loads(output)
    assert list(document) == [
        "verdict",
        "slowdown",
        "mean_slowdown",
        "decided_by",
        "threshold",
        "confidence",
        "reference",
        "new",
        "phases",
        "slower_phase",
        "peak_memory_ratio",
        "warnings",
        "history",
    ]
    assert document["verdict"] == "slower"
    assert list(document["slowdown"]) == ["ratio", "ci_low", "ci_high"]
    assert document["slowdown"]["ci_low"] > 1.02
    assert list(document["new"]) == [
        "source",
        "record",
        "step_seconds",
        "steps",
        "peak_memory_bytes",
        "origin",
    ]
    assert list(document["phases"][0]) == [
        "name",
        "reference_seconds",
        "new_seconds",
        "difference_seconds",
    ]
    assert list(document["history"]) == [
        "file",
        "verdict",
        "entries",
        "left_out",
        "slowdown",
        "first_bad",
        "changes",
        "warnings",
    ]


def test_every_key_of_the_json_is_in_the_reference(folder: Path) -> None:
    output, _ = run("a.json", "slow.json", "--json", "--history", "h.jsonl")
    page = Path(__file__).parents[2] / "docs" / "reference" / "compare.md"
    text = page.read_text()
    keys = set(re.findall(r'"(\w+)": ', output)) - {"OMP_NUM_THREADS"}
    assert sorted(key for key in keys if f"`{key}`" not in text) == []


def test_markdown_goes_to_a_file_or_to_stdout(folder: Path) -> None:
    table, _ = run("a.json", "slow.json", "--markdown", "out/comment.md")
    comment = (folder / "out" / "comment.md").read_text()
    assert comment.startswith("### Ridgeline: 1.20× slower")
    assert "1.20× slower" in table
    output, _ = run("a.json", "slow.json", "--markdown", "-")
    assert output == comment


def test_json_and_markdown_cannot_share_stdout(folder: Path) -> None:
    output, error = run("a.json", "slow.json", "--json", "--markdown", "-")
    assert isinstance(error, InputError)
    assert output == ""


@pytest.mark.parametrize("name", ["missing.json", "text.json"])
def test_a_bad_file_is_bad_input_and_adds_nothing_to_the_history(folder: Path, name: str) -> None:
    (folder / "text.json").write_text("step: 3")
    output, error = run("a.json", name, "--history", "h.jsonl")
    assert isinstance(error, InputError)
    assert name in str(error)
    assert output == ""
    assert not (folder / "h.jsonl").exists()


def test_a_drift_that_no_single_comparison_sees_fails_by_the_history(folder: Path) -> None:
    errors = []
    for week in range(24):
        median = MEDIAN_SECONDS * (1 + 0.008 * max(0, week - 10))
        profile = a_profile(median, step_samples=step_samples(median, seed=week))
        before, after = folder / "before.json", folder / "after.json"
        before.write_bytes(
            after.read_bytes() if after.exists() else (folder / "a.json").read_bytes()
        )
        after.write_bytes(msgspec.json.encode(profile))
        _, error = run("before.json", "after.json", "--history", "h.jsonl", "--threshold", "0.03")
        errors.append(error)
    assert errors[:14] == [None] * 14
    last = errors[-1]
    assert isinstance(last, Regression)
    line = re.search(r"since h\.jsonl:(\d+) \(after\.json", str(last))
    assert line is not None
    assert 12 <= int(line.group(1)) <= 18


def test_different_machines_are_warned_about(folder: Path) -> None:
    profile = a_profile(MEDIAN_SECONDS)
    origin = msgspec.structs.replace(profile.environment, device="NVIDIA H100")
    moved = msgspec.structs.replace(profile, environment=origin)
    (folder / "moved.json").write_bytes(msgspec.json.encode(moved))
    output, error = run("a.json", "moved.json")
    assert error is None
    assert "warning: different device: AMD EPYC 9R14 → NVIDIA H100" in output


def test_compare_starts_without_torch_and_without_plotly() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import ridgeline.cli.compare, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert {"torch", "plotly"}.isdisjoint(loaded)
