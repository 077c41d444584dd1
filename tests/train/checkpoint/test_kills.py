"""kill -9 at random moments: the run always goes on, from a whole checkpoint, losing no more than
one interval, and its losses are those of a run that was never killed, masks of pruning included."""

from __future__ import annotations

import os
import random
import runpy
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.cradle import Child, cradle
from tests.train.checkpoint.recipes import small_run

from ridgeline.records.recipe_file import write_recipe
from ridgeline.records.training_run import FILE as STEPS
from ridgeline.records.training_run import read_log
from ridgeline.train.checkpoint.store import Store, verify
from ridgeline.train.folder import EVENTS
from ridgeline.train.survive.events import read_events

pytestmark = pytest.mark.multiprocess
_EVERY_STEPS = 3
_LONGEST_SECONDS = 1.0


@dataclass
class Killed:
    """What was seen of a run that was killed over and over."""

    in_a_write: int = 0
    lost: list[int] = field(default_factory=list)
    """Steps done over after each kill."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two runs to be: `killed` and `whole`."""
    recipe = small_run(
        tmp_path,
        run={"steps": 1_000_000},
        pruning={"share": 0.5, "begin_step": 1, "end_step": 60, "every_steps": 4},
        checkpoint={"every_steps": _EVERY_STEPS},
        optimizer={"schedule": "constant", "final_learning_rate": 3e-3},
    )
    for name in ("killed", "whole"):
        write_recipe(tmp_path / name / "recipe.toml", recipe)
    return tmp_path


@pytest.mark.slow
def test_a_run_that_is_killed_three_times_goes_on_as_if_it_had_not_been(folder: Path) -> None:
    killed = _kill(folder / "killed", 3, seed=1)
    assert max(killed.lost) <= _EVERY_STEPS
    _compare(folder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_that_is_killed_fifty_times_goes_on_as_if_it_had_not_been(folder: Path) -> None:
    killed = _kill(folder / "killed", 50, seed=2)
    sys.stderr.write(f"{killed}\n")
    assert killed.in_a_write >= 5
    assert max(killed.lost) <= _EVERY_STEPS
    _compare(folder)


def _kill(folder: Path, kills: int, seed: int) -> Killed:
    chance = random.Random(seed)
    seen = Killed()
    for _ in range(kills):
        saved = [one.step for one in Store(folder).whole()]
        done = _last_step(folder)
        process = _start(folder)
        began = _wait_until_ready(process, folder)
        assert began == (saved[0] if saved else 0)
        seen.lost.append(done - began)
        # Every other time right after a step that is saved, when it is being written.
        time.sleep(chance.uniform(0.0, _LONGEST_SECONDS))
        if chance.random() < 0.5:
            _wait_for_a_write(folder)
            time.sleep(chance.uniform(0.0, 0.02))
        process.kill()
        process.wait()
        _leave_half_a_line(folder)
        seen.in_a_write += any((folder / "checkpoints").glob(".*"))
        for checkpoint in Store(folder).found():
            verify(checkpoint)  # a Damaged one has no manifest, and would fail here
    return seen


def _leave_half_a_line(folder: Path) -> None:
    """As a kill in the middle of a line does, which is too short a time to be hit by chance."""
    for name in (EVENTS, STEPS):
        with (folder / name).open("ab") as file:
            file.write(b'{"kind":"step","step":10')


def _compare(folder: Path) -> None:
    """Each loss of the run that was killed with that of one that was not."""
    killed = {line.step: line.loss for line in read_log(folder / "killed")}
    last = max(killed)
    assert sorted(killed) == list(range(1, last + 1))
    process = _start(folder / "whole")
    while _last_step(folder / "whole") < last and process.poll() is None:
        time.sleep(0.1)
    process.kill()
    process.wait()
    whole = {line.step: line.loss for line in read_log(folder / "whole")}
    assert {step: whole[step] for step in killed} == killed


def _start(folder: Path) -> Child:
    process = cradle().bear(
        "tests.train.checkpoint.test_kills:work",
        [str(folder)],
        log=folder / "stderr",
        environment=dict(os.environ),
    )
    return Child(process)


def work(folder: str) -> None:
    """In the process that will be killed."""
    sys.argv = ["worker", folder]
    runpy.run_module("ridgeline.train.worker", run_name="__main__")


def _wait_until_ready(process: Child, folder: Path) -> int:
    """The step that this start goes on from, once it makes steps."""
    before = _starts(folder)
    deadline = time.monotonic() + 120
    while len(_starts(folder)) == len(before):
        assert process.poll() is None, (folder / "stderr").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return _starts(folder)[-1]


def _wait_for_a_write(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while not any((folder / "checkpoints").glob(".writing-*")):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def _starts(folder: Path) -> list[int]:
    return [event.step for event in read_events(folder) if event.kind == "ready"]


def _last_step(folder: Path) -> int:
    lines = read_log(folder)
    return lines[-1].step if lines else 0
