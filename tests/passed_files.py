"""The files of Ridgeline in which code runs while a step, a report or a launch is made.

    PYTHONPATH=src:. python -m tests.passed_files

lists them; `tests/test_passed_files.py` bounds how many they are. Fewer files are fewer places to
look. Everything is done more than once and the first time does not count, so what is imported, read
or made once does not either.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from unittest import mock

from tests.launch.recipe import KUBERNETES, NODES, ON_FOUR
from tests.sources import PACKAGE
from tests.trace.simulated.kineto import Schema, write_run
from tests.trace.simulated.run import simulate
from tests.trace.simulated.truth import cases
from tests.train.processes import run_ranks
from tests.train.small_run import write_small_run

from ridgeline.cli.main import run as ridgeline

CLUSTER = f'{NODES}device = "H100-SXM-80GB"\n[run]\nfolder = "/shared/runs"\n{KUBERNETES}'
FOUND = ("diagnose/trace_rules/", "trace/formats/")
PREFIX = f"{PACKAGE}{os.sep}"
COUNTED_STEP = 2
PASSED = "passed.json"


@contextmanager
def watching() -> Iterator[set[str]]:
    """Collect the files, relative to the package, in which a function is called meanwhile."""
    passed: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PREFIX) and code.co_name != "<module>":
            passed.add(code.co_filename.removeprefix(PREFIX))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield passed
    finally:
        sys.setprofile(before)


def of_training_step(place: Path) -> set[str]:
    """One turn of the training loop on one rank, with its line in the log."""
    write_small_run(place, "[run]\nsteps = 4\nlog_every = 1\n")
    run_ranks(1, "tests.passed_files:train_and_count", place)
    return set(json.loads((place / PASSED).read_text()))


def train_and_count(place: Path) -> None:
    """As a rank: train the recipe of `place`, and leave the files of one step there."""
    from tests.train.small_run import train_alone

    from ridgeline.train.loop import Trainer

    step = Trainer._step
    turn = contextlib.ExitStack()

    def watched(trainer: Trainer, number: int) -> None:
        if number == COUNTED_STEP:
            passed = turn.enter_context(watching())
            turn.callback(lambda: (place / PASSED).write_text(json.dumps(sorted(passed))))
        if number == COUNTED_STEP + 1:
            turn.close()
        step(trainer, number)

    with mock.patch.object(Trainer, "_step", watched):
        train_alone(place)


def of_command(words: list[str]) -> set[str]:
    """One command of `ridgeline`, from its words to what it prints."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert ridgeline(words) == 0
        with watching() as passed:
            assert ridgeline(words) == 0
    return passed


def of_trace_report(place: Path) -> set[str]:
    """A page about one rank, which is read where the page is made.

    Rules and formats are found by being there, so that one more is no longer way: each kind is one.
    """
    case = cases()["gpt-healthy"]
    paths = write_run(simulate(case.program(), case.seed), place, Schema())
    passed = of_command(["trace", "report", *map(str, paths), "--html", str(place / "page.html")])
    return {next((kind for kind in FOUND if name.startswith(kind)), name) for name in passed}


def of_launch(place: Path, on: str) -> set[str]:
    """A recipe that is put into the words of Kubernetes or Slurm, and not started."""
    recipe, cluster = place / "recipe.toml", place / "cluster.toml"
    recipe.write_text(ON_FOUR)
    cluster.write_text(CLUSTER)
    words = ["launch", str(recipe), "--on", on, "--cluster", str(cluster), "--dry-run"]
    return of_command(words)


KINDS: dict[str, Callable[[Path], set[str]]] = {
    "a training step": of_training_step,
    "a trace report": of_trace_report,
    "a launch on Kubernetes": lambda place: of_launch(place, "kubernetes"),
    "a launch on Slurm": lambda place: of_launch(place, "slurm"),
}
"""What is done → how the files that it passes are found, in an empty folder."""


if __name__ == "__main__":
    for kind, passed in KINDS.items():
        with tempfile.TemporaryDirectory() as made:
            found = sorted(passed(Path(made)))
        sys.stdout.write("\n".join([f"{kind}: {len(found)} files", *found, "", ""]))
