"""How a run ended, read from its folder: its result, where it goes on, in one line what failed."""

from __future__ import annotations

import re
from pathlib import Path

from ridgeline.errors import ChildDied, InputError, Interrupted, Preempted, RidgelineError
from ridgeline.records.store import read_record
from ridgeline.records.training_run import TrainingRun
from ridgeline.train.checkpoint.store import Store
from ridgeline.train.folder import ERRORS, LOGS, RESULT
from ridgeline.train.survive.stop import INTERRUPTED, TERMINATED

_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""What torch puts before each line of a traceback."""


def is_over(folder: Path) -> bool:
    """Whether the run as a whole has ended, wherever."""
    return (folder / RESULT).exists() or any((folder / ERRORS).glob("rank*.txt"))


def result_of(folder: Path) -> TrainingRun:
    """What came of a run that has ended well.

    Raises:
        Preempted: Another machine of the run was told to end.
        Interrupted: So it was, by Ctrl-C.
    """
    run = read_record(folder / RESULT, TrainingRun)
    if run.stopped == TERMINATED:
        raise Preempted(f"SIGTERM: {standing(folder)}")
    if run.stopped == INTERRUPTED:
        raise Interrupted(f"interrupted; {standing(folder)}")
    return run


def standing(folder: Path) -> str:
    """Where a run that was stopped goes on."""
    found = Store(folder).whole()
    if not found:
        return f"nothing was saved yet; the run lies in {folder}"
    return f"saved after step {found[0].step:,}; the same command goes on from there ({folder})"


def what_failed(folder: Path, code: int) -> RidgelineError:
    """The error of a run whose ranks ended with this code; in a rank's words if it left any."""
    told = sorted((folder / ERRORS).glob("rank*.txt"), key=lambda path: path.stat().st_mtime_ns)
    if told:
        exit_code, _, message = told[0].read_text().strip().partition("\n")
        return InputError(message) if exit_code == "2" else RidgelineError(message)
    if not any((folder / LOGS).rglob("stderr.log")):
        return _torchrun_failed(folder, code)
    log = _last_words(folder)
    ended = f"signal {-code}" if code < 0 else str(code)
    return ChildDied(f"a rank ended with {ended}: {log}; see {folder / LOGS}")


def _torchrun_failed(folder: Path, code: int) -> ChildDied:
    """What ended before it had started a rank."""
    logs = sorted(folder.glob("start-*.log"), key=lambda path: path.stat().st_mtime_ns)
    words = [line for line in logs[-1].read_text(errors="replace").splitlines() if line.strip()]
    said = words[-1].strip() if words else "it left no message"
    return ChildDied(f"torchrun ended with {code} before a rank began: {said}; see {logs[-1]}")


def _last_words(folder: Path) -> str:
    """The last line of the first log of the last start that ends in an error."""
    logs = sorted((folder / LOGS).rglob("stderr.log"), key=lambda found: found.stat().st_mtime_ns)
    last = max((path.parent.parent.name for path in logs), key=_number, default="")
    for path in (path for path in logs if path.parent.parent.name == last):
        text = _RANK.sub("", path.read_text(errors="replace"))
        lines = [line for line in text.splitlines() if line.strip()]
        if any(line.startswith("Traceback") for line in lines):
            return lines[-1]
        told = [line for line in lines if line.startswith("ridgeline: ")]
        if told:
            return told[-1].removeprefix("ridgeline: ")
    return "it left no message"


def _number(name: str) -> int:
    """The number in a name such as `attempt_3`; -1 where there is none."""
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1
