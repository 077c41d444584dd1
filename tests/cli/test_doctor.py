"""`ridgeline doctor`: its JSON is a contract, its errors are one line, Ctrl-C leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.diagnose.profiles import limits, profile

import ridgeline.diagnose.doctor as doctors
from ridgeline.cli.main import run
from ridgeline.measure.compare.runs import read_run
from ridgeline.records import StepProfile
from ridgeline.records.script_facts import Habit

FAULTY = profile(
    shares={"other": 0.4},
    habits={"save": Habit(seconds=0.04)},
    losses=[2.0, float("nan")],
    non_finite=1,
)
TINY = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TINY)
    return path


def measured(monkeypatch: pytest.MonkeyPatch, *profiles: StepProfile) -> None:
    """Let the doctor see these profiles without running anything."""

    def measure(
        command: list[str], plan: Any, *, ceilings: Any, on_progress: Any
    ) -> list[StepProfile]:
        on_progress("timing 20 steps")
        ceilings("cpu")
        return list(profiles)

    monkeypatch.setattr(doctors, "measure", measure)
    monkeypatch.setattr(doctors, "probed_ceilings", lambda device, quick: limits(device))


def test_the_json_document_keeps_its_contract(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, FAULTY)
    assert run(["doctor", "--json", "--", str(script)]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert "timing 20 steps" in captured.err
    assert set(document) == {"record", "profile", "findings", "verdict", "limit_fraction"}
    figures = {"p50", "p95", "p99", "mean", "std", "min", "max"}
    described = document["profile"]
    assert set(described["step_seconds"]) == figures
    assert all(set(phase) == figures for phase in described["phases"].values())
    assert {"steps", "samples_per_second", "peak_memory_bytes", "mfu"} <= set(described)
    assert {
        "cause", "share", "gain_low", "gain_high", "confidence", "evidence", "where", "cure",
        "technique",
    } <= set(document["findings"][0])  # fmt: skip
    assert [finding["cause"] for finding in document["findings"]] == ["non-finite", "save-in-loop"]
    assert described["losses"] == [2.0, None], "JSON has no NaN"


def test_several_ranks_are_all_told(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = profile(world_size=2)
    measured(monkeypatch, made, replace(made, rank=1))
    assert run(["doctor", "--json", "--", str(script)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["rank"] for each in document["profiles"]] == [0, 1]


def test_a_clean_script_is_told_that_nothing_is_worth_doing(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, profile())
    assert run(["doctor", "--", str(script)]) == 0
    shown = capsys.readouterr().out
    assert "Nothing worth doing" in shown
    assert "from the limit" in shown


def test_the_document_and_the_page_are_written_where_asked(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, FAULTY)
    out, report = tmp_path / "doctor.json", tmp_path / "doctor.html"
    assert run(["doctor", "--out", str(out), "--html", str(report), "--", str(script)]) == 0
    assert read_run(out).record == "doctor"
    assert "torch.save" in report.read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--", "absent.py"], "absent.py: no such script"),
        (["--steps", "0", "--", "train.py"], "--steps must be at least 1"),
        (["--budget", "-1", "--", "train.py"], "--budget must be above 0"),
        (["--warmup", "-1", "--", "train.py"], "--warmup cannot be negative"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    told: str,
    script: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(script.parent)
    assert run(["doctor", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert told in captured.err
    assert captured.err.count("\n") == 1


def test_a_place_that_cannot_be_written_is_bad_input(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(monkeypatch, FAULTY)
    (script.parent / "folder.json").mkdir()
    out = str(script.parent / "folder.json")
    assert run(["doctor", "--out", out, "--", str(script)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_missing_torch_names_the_extra(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctors, "find_spec", lambda name: None)
    assert run(["doctor", "--", str(script)]) == 2
    assert "ridgeline[train]" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupt_is_one_line_and_ends_the_script(script: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "ridgeline.cli.main", "doctor", "--steps", "100000", "--warmup",
         "10", "--", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    assert program.stderr is not None
    for line in program.stderr:
        if line.startswith("timing"):
            break
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert program.returncode == 130
    assert out == ""
    assert err.strip() == "ridgeline: interrupted"
    assert children
    assert not any(os.path.exists(f"/proc/{child}") for child in children)
