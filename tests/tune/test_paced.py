"""Calls at the period of frames, beside a closed loop, through the program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.records import Ledger, read_record

ANSWERS = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 4).eval()
for frame in range(100000):
    model(torch.rand(1, 8)).argmax().item()
"""
TRAINS = """
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(2000):
    optimizer.zero_grad()
    model(torch.rand(4, 8)).mean().backward()
    optimizer.step()
"""


def tune(folder: Path, script: str, *options: str) -> list[str]:
    path = folder / "script.py"
    path.write_text(script)
    return [
        "tune", "--out", str(folder / "out"), "--only", "gc-freeze", "--budget", "30", "--json",
        *options, "--", str(path),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_script_that_answers_is_called_at_the_period(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], warm: None
) -> None:
    assert run(tune(tmp_path, ANSWERS, "--period", "5ms")) == 0
    ledger = read_record(tmp_path / "out" / "ledger.json", Ledger)
    first = ledger.paced[0]
    assert first.name == "as it stood"
    assert first.closed.period_seconds is None
    assert first.paced.period_seconds == 0.005
    assert first.paced.calls < first.closed.calls, "a frame is waited for"
    assert first.paced.p50.seconds < 0.005, "the wait is in no call's time"
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["paced"]] == [
        one.name for one in ledger.paced
    ]
    assert "Paced, one call every 5.00 ms" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_a_script_that_trains_has_no_period(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], warm: None
) -> None:
    assert run(tune(tmp_path, TRAINS, "--period", "33ms")) == 2
    assert "--period: the script trains" in capsys.readouterr().err


def test_a_period_of_nothing_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tune(tmp_path, ANSWERS, "--period", "0s")) == 2
    assert "--period" in capsys.readouterr().err
