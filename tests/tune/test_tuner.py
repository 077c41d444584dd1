"""The whole job on a real script, through the program, with real interruptions."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.measure.child_tree import descendants
from ridgeline.records import Ledger, read_record
from ridgeline.tune import ab_run as ab_runs
from ridgeline.tune import baseline as baselines
from ridgeline.tune.stack import read_stack

SCRIPT = Path(__file__).parent / "scripts" / "waits_for_data.py"
PROGRAM = [sys.executable, "-m", "ridgeline.cli.main"]
ONLY = ["--only", "loader-workers", "--budget", "120"]
PRICED = ["--usd-per-hour", "36", "--steps-to-train", "1e6"]

REFUSES = """import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3))
        self.out = nn.Linear(32 * 28 * 28, 10)

    def forward(self, x):
        x = self.conv(x).relu()
        assert x.is_contiguous()
        return self.out(x.flatten(1))


model = Encoder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40_000):
    loss = model(torch.randn(8, 3, 32, 32)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def tune(folder: Path, *options: str) -> list[str]:
    return [*PROGRAM, "tune", "--out", str(folder / "out"), *ONLY, *options, "--", "train.py"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, warm: None) -> tuple[Path, str]:
    """In this process, so that scripts start warm; the tests below start the program itself."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "train.py").write_text(SCRIPT.read_text())
    said = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(said),
    ):
        patch.setattr(ab_runs, "_BLOCK_SECONDS", 0.2)
        assert run(tune(folder, "--json", "--patch", *PRICED)[len(PROGRAM) :]) == 0
    return folder, said.getvalue()


def test_the_starved_script_is_fed_and_every_row_is_proved(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    ledger = read_record(folder / "out" / "ledger.json", Ledger)
    assert ledger.complete
    assert ledger.rows[0].rounds > 0
    assert ledger.cumulative_ci[0] > 1.01
    assert ledger.loss_check is not None
    assert ledger.loss_check.passed
    (row,) = [r for r in ledger.rows if r.stage == "add" and r.kept]
    assert row.verified
    assert row.ci_low <= row.multiplier <= row.ci_high
    assert row.rounds >= 3
    assert row.cumulative == pytest.approx(row.multiplier)
    assert row.multiplier == ledger.cumulative, "one member: its A/B run is the proof of the whole"


def test_json_on_stdout_is_the_contract(finished: tuple[Path, str]) -> None:
    document = json.loads(finished[1])
    assert {"baseline", "rows", "cumulative", "cumulative_ci", "loss_check"} <= set(document)
    assert {"stack", "report", "patch"} <= set(document)
    assert len(document["cumulative_ci"]) == 2
    assert {
        "technique", "multiplier", "ci_low", "ci_high", "cumulative", "step_seconds",
        "peak_memory_bytes", "verified", "verification", "kept", "reason",
    } <= set(document["rows"][0])  # fmt: skip
    assert {"steps", "step_seconds", "phases", "peak_memory_bytes"} <= set(document["baseline"])


def test_the_folder_holds_what_the_other_commands_need(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    out = folder / "out"
    names = {path.name for path in out.iterdir()}
    assert names == {"ledger.json", "stack.toml", "report.html", "tuned.patch"}
    assert [row.name for row in read_stack(out / "stack.toml").technique] == ["loader-workers"]
    assert (folder / "train.py").read_text() == SCRIPT.read_text(), "the script is untouched"


def test_the_patch_applies_and_the_patched_script_fetches_ahead(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = finished
    (tmp_path / "train.py").write_text(SCRIPT.read_text())
    patch = folder / "out" / "tuned.patch"
    subprocess.run(["git", "apply", "--whitespace=error", str(patch)], cwd=tmp_path, check=True)
    assert re.search(r"DataLoader\(.*num_workers=\d", (tmp_path / "train.py").read_text())


def test_the_ledger_the_page_and_the_patch_say_what_the_run_costs(
    finished: tuple[Path, str],
) -> None:
    document = json.loads(finished[1])
    bill = document["bill"]
    step_seconds = document["step_seconds"][0]  # the headline's
    assert bill["step_seconds"] == pytest.approx(step_seconds)
    assert bill["run_seconds"] == pytest.approx(1e6 * step_seconds)
    assert bill["usd"] == pytest.approx(1e6 * step_seconds / 3600 * 36)
    assert bill["tuned_usd"] == pytest.approx(bill["usd"] / document["cumulative"])
    (row,) = [row for row in document["rows"] if row["usd"] is not None]
    assert row["usd"] == pytest.approx(bill["usd"] / row["cumulative"])
    assert row["costs"].startswith("Memory and start-up of the workers")
    page = (finished[0] / "out" / "report.html").read_text()
    assert "A run of 1,000,000 steps (--steps-to-train) at $36.00 an hour" in page
    head = (finished[0] / "out" / "tuned.patch").read_text().partition("\n--- ")[0].splitlines()
    assert all(line.startswith("#") for line in head)
    assert any("costs: Memory and start-up of the workers" in line for line in head)
    assert any(line.startswith("# as it stood") and "$" in line for line in head)


@pytest.mark.slow
@pytest.mark.alone
def test_the_budget_is_the_wall_time_of_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.read_text())
    monkeypatch.chdir(tmp_path)
    begun = time.monotonic()
    assert run(["tune", "--out", "out", "--budget", "12s", "--", "train.py"]) == 0
    spent = time.monotonic() - begun
    assert spent < 1.1 * 12
    ledger = read_record(tmp_path / "out" / "ledger.json", Ledger)
    assert ledger.complete
    if ledger.stack_rows:  # a machine with other work may not get that far
        assert ledger.step_seconds is not None
        before, after = ledger.step_seconds
        assert before / after == pytest.approx(ledger.cumulative)
        names = [row.name for row in read_stack(tmp_path / "out" / "stack.toml").technique]
        assert names == ledger.stack_rows


@pytest.mark.slow
def test_a_start_that_takes_half_of_the_budget_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    """On a machine with other work to import torch takes as long."""
    text = SCRIPT.read_text().replace("    loader = ", "    time.sleep(33)\n    loader = ")
    assert "sleep(33)" in text
    (tmp_path / "train.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    begun = time.monotonic()
    assert run(["tune", "--out", "out", "--budget", "80s", "--", "train.py"]) == 0
    assert time.monotonic() - begun < 1.1 * 80
    ledger = read_record(tmp_path / "out" / "ledger.json", Ledger)
    assert ledger.baseline.steps >= 1


@pytest.mark.slow
def test_a_first_step_that_is_no_usual_one_is_not_all_that_the_search_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    """It writes a summary, say, which takes longer than there is time for a profile."""
    step = "        loss.backward()\n"
    text = SCRIPT.read_text().replace(
        step, f"{step}        if not optimizer.state:\n            time.sleep(5)\n"
    )
    (tmp_path / "train.py").write_text(text.replace("lr=0.01", "lr=0.01, momentum=0.5"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(baselines, "_LEAST_SECONDS", 2.0)
    assert run(["tune", "--out", "out", *ONLY[:2], "--budget", "40s", "--", "train.py"]) == 0
    ledger = read_record(tmp_path / "out" / "ledger.json", Ledger)
    assert ledger.baseline.step_seconds.p50 < 1
    assert ledger.rows[0].rounds > 0


@pytest.mark.slow
def test_a_row_that_failed_says_where_in_the_script_and_not_again_what_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    (tmp_path / "train.py").write_text(REFUSES)
    monkeypatch.chdir(tmp_path)
    only = ["--only", "channels-last", "--budget", "40s"]
    assert run(["tune", "--out", "out", *only, "--", "train.py"]) == 0
    row = read_record(tmp_path / "out" / "ledger.json", Ledger).rows[0]
    assert row.reason.startswith("it fails at train.py:13: AssertionError")


def started(folder: Path) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(SCRIPT.read_text())
    return subprocess.Popen(
        tune(folder), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Alive; an orphan that ended and waits to be reaped is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def assert_all_end(pids: list[int]) -> None:
    """Workers of a killed child are init's by now: nobody here can wait for them, so look twice."""
    deadline = time.monotonic() + 20
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [["--budget", "0.001"], []], ids=["no time left", "all"])
def test_an_interrupted_job_leaves_a_ledger_and_resumes(tmp_path: Path, budget: list[str]) -> None:
    process = started(tmp_path)
    ledger = tmp_path / "out" / "ledger.json"
    wait_for(ledger.exists, process)
    children = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1].startswith("ridgeline: interrupted")
    assert not read_record(ledger, Ledger).complete
    assert_all_end(children)
    words = [*tune(tmp_path)[:-2], *budget, "--", "train.py"]
    again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "resuming" in again.stderr
    assert "profiling the script as it stands" not in again.stderr
    assert read_record(ledger, Ledger).complete


@pytest.mark.slow
def test_an_interruption_after_the_first_proof_leaves_its_stack(tmp_path: Path) -> None:
    process = started(tmp_path)
    stack = tmp_path / "out" / "stack.toml"
    wait_for(stack.exists, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert [row.name for row in read_stack(stack).technique] == ["loader-workers"]
    ledger = read_record(tmp_path / "out" / "ledger.json", Ledger)
    assert ledger.cumulative > 1
    assert ledger.cumulative_ci[0] > 1, "the whole was measured directly: it is the first row"


@pytest.mark.slow
def test_a_script_that_is_killed_is_started_again_and_the_ledger_is_finished(
    tmp_path: Path,
) -> None:
    process = started(tmp_path)
    ledger = tmp_path / "out" / "ledger.json"
    wait_for(ledger.exists, process)

    def variants() -> list[int]:
        return [
            pid
            for pid in descendants(process.pid)
            if b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    wait_for(lambda: len(variants()) >= 1, process)
    for pid in variants():
        os.kill(pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert read_record(ledger, Ledger).complete


@pytest.mark.slow
def test_multipliers_of_a_run_that_plays_and_learns_are_those_of_whole_cycles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Path(__file__).parents[1] / "measure/scripts/plays_and_learns.py"
    asked = ["--budget", "60", "--only", "fused-optimizer", "--out", str(tmp_path / "out")]
    assert run(["tune", *asked, "--json", "--", str(script)]) == 0
    ledger = json.loads(capsys.readouterr().out)
    assert any(note.startswith("one step in 60 takes far longer") for note in ledger["notes"])
    learning = [row["multiplier"] for row in ledger["rows"] if row["stage"] == "add"]
    assert all(0.8 < multiplier < 1.25 for multiplier in learning), "playing is most of the time"
