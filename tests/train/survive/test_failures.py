"""What happens to runs, done to real ones: ranks killed, stopped, told to go; batches gone bad."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.train.processes import run_ranks
from tests.train.small_run import write_small_run

from ridgeline.measure.child_tree import descendants
from ridgeline.records.training_run import read_log
from ridgeline.train.folder import STOP
from ridgeline.train.survive.events import Event, read_events

pytestmark = pytest.mark.multiprocess
TABLES = """
[run]
log_every = 5
[checkpoint]
every_steps = 10
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe with its model and its text beside it."""
    return write_small_run(tmp_path_factory.mktemp("survive"), TABLES)


def start(folder: Path, out: str, *changes: str) -> subprocess.Popen[str]:
    words = [word for change in changes for word in ("--set", change)]
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "ridgeline.cli.main", "train", "recipe.toml", "--json"),
            *("--out", out, *words),
        ],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(Path(__file__).parents[3] / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,  # noqa: PLW1509 - no threads here
    )


def _heed_interrupts() -> None:
    """A shell that starts jobs in the background makes them deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def until_step(folder: Path, step: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        lines = read_log(folder)
        if lines and lines[-1].step >= step:
            return
        time.sleep(0.02)
    pytest.fail(f"never came to step {step}: {process.communicate()}")


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def rank_processes(process: subprocess.Popen[str]) -> dict[int, int]:
    """Rank → process id."""
    found = {}
    for pid in descendants(process.pid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text()
            settings = Path(f"/proc/{pid}/environ").read_text().split("\0")
        except OSError:
            continue
        rank = next((one[5:] for one in settings if one.startswith("RANK=")), "")
        if "ridgeline.train.worker" in words and rank:
            found.setdefault(int(rank), pid)
    return found


def lives(pid: int) -> bool:
    """Whether a process runs; one that nobody has buried yet does not."""
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"


def finished(process: subprocess.Popen[str], code: int = 0) -> dict[str, Any]:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    return dict(json.loads(output)) if code == 0 else {"errors": errors}


def told(folder: Path, kind: str) -> list[Event]:
    return [event for event in read_events(folder) if event.kind == kind]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_killed_mid_way_costs_steps_and_not_the_result(folder: Path, ranks: int) -> None:
    steps = (f"layout.dp={ranks}", "run.steps=120")
    undisturbed = finished(start(folder, f"calm{ranks}", *steps))
    killed = start(folder, f"killed{ranks}", *steps)
    until_step(folder / f"killed{ranks}", 40, killed)
    os.kill(rank_processes(killed)[ranks - 1], signal.SIGKILL)
    run = finished(killed)
    assert run["final_loss"] == undisturbed["final_loss"]
    assert len(told(folder / f"killed{ranks}", "started")) == 2
    again = told(folder / f"killed{ranks}", "ready")[1]
    assert 30 <= again.step < 120
    goodput = run["goodput"]
    assert goodput["restarts"] == 1
    parts = [value for key, value in goodput.items() if key.endswith("_seconds")]
    assert sum(parts) - goodput["wall_seconds"] == pytest.approx(goodput["wall_seconds"])
    assert goodput["restart_seconds"] > 1.0


@pytest.mark.slow
def test_sigterm_saves_says_so_and_the_same_command_goes_on_to_the_same_loss(folder: Path) -> None:
    steps = ("layout.dp=2", "run.steps=200")
    undisturbed = finished(start(folder, "calm200", *steps))
    asked = start(folder, "asked", *steps)
    until_step(folder / "asked", 25, asked)
    asked.send_signal(signal.SIGTERM)
    errors = finished(asked, 143)["errors"]
    run = json.loads((folder / "asked" / "run.json").read_text())
    assert run["stopped"] == "SIGTERM"
    assert f"saved after step {run['steps']}" in errors
    assert "Traceback" not in errors
    again = finished(start(folder, "asked", *steps))
    assert told(folder / "asked", "ready")[1].step == run["steps"]
    assert again["final_loss"] == undisturbed["final_loss"]
    assert again["goodput"]["lost_seconds"] == 0.0


@pytest.mark.slow
def test_a_rank_that_stands_still_is_named_ended_and_started_again(folder: Path) -> None:
    process = start(folder, "hung", "layout.dp=2", "run.steps=150", "survive.hang_seconds=4")
    until_step(folder / "hung", 30, process)
    os.kill(rank_processes(process)[1], signal.SIGSTOP)
    run = finished(process)
    (event,) = told(folder / "hung", "hung")
    assert "not heard from: rank 1 on" in event.note
    assert "rank 0 waits in" in event.note
    assert event.note in run["notes"]
    assert run["steps"] == 150


@pytest.mark.slow
def test_ctrl_c_saves_and_a_second_one_does_not_wait(folder: Path) -> None:
    asked = start(folder, "interrupted", "layout.dp=2", "run.steps=100000")
    until_step(folder / "interrupted", 25, asked)
    asked.send_signal(signal.SIGINT)
    errors = finished(asked, 130)["errors"]
    assert "saved after step" in errors.splitlines()[-1]
    again = start(folder, "interrupted", "layout.dp=2", "run.steps=100000")
    until_step(folder / "interrupted", 60, again)
    pids = rank_processes(again)
    os.kill(pids[1], signal.SIGSTOP)  # no step can end, so nothing can be saved
    again.send_signal(signal.SIGINT)
    wait_for((folder / "interrupted" / STOP).exists, "the ranks to be asked")
    began = time.monotonic()
    again.send_signal(signal.SIGINT)
    finished(again, 130)
    assert time.monotonic() - began < 5.0
    assert not any(lives(pid) for pid in pids.values())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_command_that_is_killed_takes_its_ranks_along_and_goes_on_to_the_same_loss(
    folder: Path, ranks: int
) -> None:
    steps = (f"layout.dp={ranks}", "run.steps=120")
    out = f"parentless{ranks}"
    undisturbed = finished(start(folder, f"whole{ranks}", *steps))
    killed = start(folder, out, *steps)
    until_step(folder / out, 40, killed)
    below = descendants(killed.pid)
    assert set(rank_processes(killed).values()) <= set(below)
    killed.kill()
    wait_for(lambda: not any(lives(pid) for pid in below), "torchrun and its ranks to end")
    finished(killed, -signal.SIGKILL)
    again = finished(start(folder, out, *steps))
    assert 30 <= told(folder / out, "ready")[1].step < 120
    assert again["final_loss"] == undisturbed["final_loss"]


@pytest.mark.slow
def test_starts_that_come_to_nothing_are_not_repeated_for_ever(folder: Path) -> None:
    process = start(folder, "broken", "layout.dp=2", "run.steps=50", "survive.max_restarts=50")
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < 100:
        for pid in rank_processes(process).values():
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.3)
    finished(process, 1)


def test_the_only_rank_is_started_again_as_often_as_asked_and_then_given_up(folder: Path) -> None:
    process = start(folder, "alone", "survive.max_restarts=1", "survive.max_rollbacks=0")
    seen: dict[int, None] = {}

    def killed_twice() -> bool:
        for pid in rank_processes(process).values():
            with contextlib.suppress(ProcessLookupError):  # the first may be gone by now
                seen[pid] = os.kill(pid, signal.SIGKILL)
        return len(seen) == 2

    wait_for(killed_twice, "two starts")
    assert "a rank ended with signal 9" in finished(process, 1)["errors"]
    assert {path.name for path in (folder / "alone" / "logs").iterdir()} == {
        "attempt_0",
        "attempt_1",
    }


def test_a_batch_whose_loss_is_no_number_is_rolled_back_and_skipped(folder: Path) -> None:
    run_ranks(1, "tests.train.survive.bad_batches:check", folder)
