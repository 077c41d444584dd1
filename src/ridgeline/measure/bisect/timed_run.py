"""One run of the command in one checkout, and the seconds that it is judged by.

The steps of a script (`train.py`, `-m package.train`) are timed as `ridgeline doctor` times them,
without its instruments.
Any other command runs whole. If it prints a record of Ridgeline as its only output, that record's
repetitions count; if its last line states seconds (`3.2 s`, `seconds: 3.2`), that number; else the
wall time from start to end.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.measure.bisect.commits import clean_environment
from ridgeline.measure.child_tree import descendants
from ridgeline.measure.compare.runs import read_run

_LABELLED = re.compile(r"(?:seconds|time)\s*[:=]\s*(\S+?)\s*(s|ms|us|µs|seconds)?")
_WITH_UNIT = re.compile(r"(?:.*\s)?(\S+?)\s*(s|ms|us|µs|seconds)")
_SECONDS = {"s": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, None: 1.0}
TIMED_WHOLE = ("printed time", "whole run")
"""What is one figure of a run, caches and all; everything else has a warm-up of its own."""
_GRACE_SECONDS = 10.0
_STEPS = [sys.executable, "-m", "ridgeline.measure.bisect.time_steps"]


class RunFailed(Exception):
    """The command could not be run, or failed; says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """What one run took."""

    samples: list[float]
    """Seconds; one where the command was timed as a whole."""
    what: str
    """The kind of thing that was timed: `step`, `printed time`, `whole run`, …"""
    wall_seconds: float


def command_in(command: list[str], root: Path, inside: str, tree: Path) -> list[str]:
    """The command as it is typed in a checkout: what it names there is the checkout's.

    A path into the user's repository would run the same files at every commit. A program that is
    in no commit (`.venv/bin/python`) stays the user's.
    """
    words = []
    for place, word in enumerate(command):
        path = Path(word)
        here = path if path.is_absolute() else root / inside / path
        below = Path(os.path.normpath(here))
        if below.is_relative_to(root) and (tree / below.relative_to(root)).exists():
            words.append(str(tree / below.relative_to(root)) if path.is_absolute() else word)
        elif place == 0 and os.sep in word and below.exists():
            words.append(str(below))
        else:
            words.append(word)
    if words[0].endswith(".py") or words[0] == "-m":
        return [*_STEPS, *words]
    beside = Path(sys.executable).parent / words[0]
    if words[0] in ("python", "python3"):
        words[0] = sys.executable
    elif os.sep not in words[0] and beside.is_file():
        words[0] = str(beside)
    return words


def run_once(
    command: list[str], *, root: Path, inside: str, tree: Path, patience_seconds: float | None
) -> TimedRun:
    """Run the command in a checkout.

    Raises:
        RunFailed: it failed, printed a record without times, or did not end in time.
    """
    folder = tree / inside
    if not folder.is_dir():
        raise RunFailed(f"there is no folder {inside} in it")
    words = command_in(command, root, inside, tree)
    with tempfile.TemporaryDirectory(prefix="ridgeline-output-") as outputs:
        out, errors = Path(outputs) / "stdout.json", Path(outputs) / "stderr"
        began = time.perf_counter()
        code = _run(words, folder, _environment(root, tree), out, errors, patience_seconds)
        seconds = time.perf_counter() - began
        if code is None:
            raise RunFailed(f"it had not ended after {seconds:.0f} s")
        if code:
            raise RunFailed(f"exit code {code}: {_last_line(errors) or _last_line(out)}")
        samples, what = _times(out, seconds)
    return TimedRun(samples=samples, what=what, wall_seconds=seconds)


def _environment(root: Path, tree: Path) -> dict[str, str]:
    """Ours, with what it says of the repository said of the checkout.

    `src/` goes first: a package installed for development would else be the user's at every
    commit.
    """
    environment = clean_environment()
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(tree / "src")] if (tree / "src").is_dir() else []
    for path in filter(None, given):
        inside = Path(path).is_relative_to(root)
        paths.append(str(tree / Path(path).relative_to(root)) if inside else path)
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _run(
    words: list[str],
    folder: Path,
    environment: dict[str, str],
    out: Path,
    errors: Path,
    patience_seconds: float | None,
) -> int | None:
    """The exit code; None: it was stopped, because it took too long."""
    with out.open("wb") as stdout, errors.open("wb") as stderr:
        try:
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            raise RunFailed(f"{words[0]}: {error.strerror}") from None
        try:
            return process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing of it runs on: what it started is asked to end, and ended."""
    below = descendants(process.pid) if process.poll() is None else []
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pid in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _times(out: Path, wall_seconds: float) -> tuple[list[float], str]:
    with out.open("rb") as stream:
        begins = stream.read(1)
    if begins == b"{":
        try:
            run = read_run(out)
        except InputError as error:
            raise RunFailed(str(error).replace(f"{out}: ", "it printed JSON, but ")) from None
        return run.samples, run.unit
    line = _last_line(out)
    for pattern in (_LABELLED, _WITH_UNIT):
        found = pattern.fullmatch(line)
        seconds = _number(found.group(1)) if found else None
        if found and seconds is not None:
            return [seconds * _SECONDS[found.group(2)]], TIMED_WHOLE[0]
    return [wall_seconds], TIMED_WHOLE[1]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _last_line(path: Path) -> str:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 8000))
        lines = stream.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
