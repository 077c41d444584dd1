"""Start the ranks of a run on this machine, watch over them, say in one line what went wrong.

torchrun starts and ends the processes, and starts them all again when one of them died; a single
one needs no torchrun (`one_rank.py`). All of them end with this process, even if it is killed
(`agent.py`). What they print goes to `logs/`. A run whose folder has checkpoints goes on from the
newest. Imports no torch: the processes do.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO

from ridgeline.errors import ChildDied, InputError, Interrupted, Preempted, RidgelineError
from ridgeline.measure.child_tree import descendants
from ridgeline.records.input_file import read_toml
from ridgeline.records.recipe import Recipe, RecipeSurvive
from ridgeline.records.recipe_file import anchored, write_recipe
from ridgeline.records.store import read_record
from ridgeline.records.training_log import FILE as LOG
from ridgeline.records.training_run import TrainingRun
from ridgeline.train.checkpoint.same_run import check_same_run
from ridgeline.train.checkpoint.store import Store
from ridgeline.train.folder import (
    BOARD,
    ERRORS,
    EVENTS,
    LOGS,
    RECIPE,
    RESULT,
    SKIPPED,
    STOP,
)
from ridgeline.train.nodes import Nodes
from ridgeline.train.one_rank import OneRank
from ridgeline.train.survive.events import Event, EventLog, EventTail
from ridgeline.train.survive.stop import INTERRUPTED, TERMINATED
from ridgeline.train.survive.watchdog import HOST

_KEPT_PAGES = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**26),
}
"""glibc gives large blocks back to the kernel when they are freed, and every step faults the pages
of its activations in again; with these it keeps them (mallopt(3))."""
_POLL_SECONDS = 0.2
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""What torch puts before each line of a traceback."""
_FUTILE_STARTS = 3
"""In a row, without a step: the next would do no better."""
_ASK_SECONDS = 3.0
_MISSES = 3
_RETURN_SECONDS = 600.0
"""For so long a machine that lost the others tries to join them again."""


def train_recipe(
    recipe: Recipe,
    folder: Path,
    watch: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
    *,
    nodes: Nodes | None = None,
    fresh: bool = False,
) -> TrainingRun:
    """Run a recipe on this machine, all its ranks, to the end.

    Args:
        recipe: What to train.
        folder: Where the run lives: recipe, tokens, log, checkpoints, model, result.
        watch: Called several times a second while the ranks run.
        environment: Of the ranks, in place of ours; with `run.stack`, one that applies it
            (`ridgeline.tune.stack.stack_environment`).
        nodes: The machines that share the run, of which this is one; None: this is all.
        fresh: Delete the checkpoints that are there and begin at step 0.

    Raises:
        InputError: The recipe cannot be run; the message is the rank's own.
        ChildDied: A rank ended with an error; the message names it and its log.
        Interrupted: Ctrl-C; the ranks have ended.
        Preempted: SIGTERM, here or at another machine of the run; the ranks have ended.
    """
    from ridgeline.train.check import check

    check(recipe)
    if recipe.images is not None:
        from ridgeline.train.images.prepared import prepare_images, settled

        recipe = settled(recipe, prepare_images(recipe))
    if recipe.run.stack and environment is None:
        raise InputError(
            "run.stack is applied by `ridgeline train`; from Python give the environment that"
            " ridgeline.tune.stack.stack_environment makes"
        )
    if nodes is None or nodes.leads():
        _make_ready(recipe, folder, fresh=fresh)
    given = _environment(recipe, os.environ if environment is None else environment, nodes)
    leader = _Leader(None if nodes is None or nodes.leads() else nodes)
    ranks = _Ranks(_starter(recipe, folder, nodes, given), given, folder, recipe.survive)
    while True:
        code = ranks.run(watch, leader)
        if not leader.lost or _is_over(folder) or not leader.came_back():
            break
    if code:
        raise _what_failed(folder, code)
    return _result(folder)


def _make_ready(recipe: Recipe, folder: Path, *, fresh: bool) -> None:
    """A folder in which nothing is of a run that this one does not go on from."""
    store = Store(folder)
    if fresh:
        store.clear()
    found = store.whole()
    if found:
        check_same_run(found[0], recipe)
    folder.mkdir(parents=True, exist_ok=True)
    if not _holds(folder / RECIPE, recipe):
        write_recipe(folder / RECIPE, recipe)
    stale = [RESULT, STOP] + ([] if found else [LOG, EVENTS, SKIPPED])
    for name in stale:
        (folder / name).unlink(missing_ok=True)
    for name in [ERRORS, LOGS] + ([] if found else [BOARD]):
        shutil.rmtree(folder / name, ignore_errors=True)
    log = EventLog(folder)
    log.write("launched")
    log.close()


def _holds(path: Path, recipe: Recipe) -> bool:
    """A run may be started from the recipe that it keeps, which then stays as it is."""
    try:
        return anchored(read_toml(path, Recipe, ours=True), path.parent) == recipe
    except InputError:
        return False


def _starter(
    recipe: Recipe, folder: Path, nodes: Nodes | None, environment: Mapping[str, str]
) -> Callable[[BinaryIO], subprocess.Popen[bytes] | OneRank]:
    """What starts the ranks, given where to write what is said before they begin."""
    # A batch that is rolled back takes a start as well, and has a limit of its own.
    restarts = recipe.survive.max_restarts + recipe.survive.max_rollbacks
    if nodes is None and recipe.layout.num_devices == 1:
        return lambda _heard: OneRank(folder, environment, restarts)
    command = _command(recipe, folder, nodes, restarts)
    return lambda heard: subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=heard,
        start_new_session=True,
    )


def _command(recipe: Recipe, folder: Path, nodes: Nodes | None, restarts: int) -> list[str]:
    ranks = recipe.layout.num_devices
    if nodes is not None and ranks % nodes.most:
        raise InputError(
            f"the layout is of {ranks} processes and --nodes of {nodes.most} machines, which do"
            " not divide them; change one of the two"
        )
    where = ["--standalone"] if nodes is None else nodes.arguments(_identity(folder))
    return [
        *(sys.executable, "-m", "ridgeline.train.agent", str(os.getpid()), *where),
        *("--nproc-per-node", str(ranks // (nodes.most if nodes else 1))),
        *("--max-restarts", str(restarts)),
        *_grace(recipe.survive.grace_seconds),
        *("--log-dir", str(folder / LOGS), "--redirects", "3"),
        *("-m", "ridgeline.train.worker", str(folder)),
    ]


def _grace(seconds: float) -> list[str]:
    """How long torchrun lets ranks end; one that has no such option gives them 30 s.

    Its source tells: importing it would load torch into a process that needs nothing of it.
    """
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    option = "--shutdown-timeout"
    known = option in (Path(torch.origin).parent / "distributed" / "run.py").read_text()
    return [option, str(max(1, round(seconds)))] if known else []


def _identity(folder: Path) -> str:
    """The same on all machines, which share the folder."""
    return hashlib.blake2b(str(folder.resolve()).encode(), digest_size=8).hexdigest()


def _environment(recipe: Recipe, given: Mapping[str, str], nodes: Nodes | None) -> dict[str, str]:
    threads = max(1, (os.cpu_count() or 1) // recipe.layout.num_devices)
    # With torchrun's own store, ranks that start again find the addresses of the dead in it.
    ours = {"OMP_NUM_THREADS": str(threads), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    host = {} if nodes is None else {HOST: nodes.address()}
    return {**ours, **host, **_KEPT_PAGES, **given}


@dataclass(slots=True)
class _Asked:
    """What signals asked for while ranks run."""

    terminated: bool = False


@contextmanager
def _listening() -> Iterator[_Asked]:
    """Note SIGTERM in place of ending; in another thread than the main one do nothing."""
    asked = _Asked()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(_number: int, _frame: object) -> None:
        asked.terminated = True

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)


class _Leader:
    """The machine that holds the rendezvous, as another one sees it."""

    def __init__(self, nodes: Nodes | None) -> None:
        """Look at the leading machine; None: it is this one."""
        self._nodes = nodes
        self._asked = monotonic()
        self._misses = 0
        self._met = False
        self.lost = False
        """It has not answered several times in a row."""

    def look(self) -> bool:
        """Whether it is lost; asks now and then."""
        if self._nodes is None or monotonic() - self._asked < _ASK_SECONDS:
            return self.lost
        self._misses = 0 if self._nodes.reachable() else self._misses + 1
        self._asked = monotonic()
        # Before the first answer torchrun waits for it, not we.
        self.lost = self._misses >= _MISSES and self._met
        self._met = self._met or not self._misses
        return self.lost

    def came_back(self) -> bool:
        """Wait for it; False: it stayed away."""
        assert self._nodes is not None
        deadline = monotonic() + _RETURN_SECONDS
        while monotonic() < deadline:
            if self._nodes.reachable():
                self.lost, self._misses, self._asked = False, 0, monotonic()
                return True
            sleep(1.0)
        return False


class _Ranks:
    """The ranks on this machine, and torchrun where it starts them."""

    def __init__(
        self,
        start: Callable[[BinaryIO], subprocess.Popen[bytes] | OneRank],
        environment: Mapping[str, str],
        folder: Path,
        survive: RecipeSurvive,
    ) -> None:
        self._start, self._environment = start, environment
        self._folder, self._grace_seconds = folder, survive.grace_seconds

    def run(self, watch: Callable[[], None], leader: _Leader) -> int:
        """Run to the end and return the exit code; not 0 where an error was left in the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        log = f"start-{self._environment.get(HOST, 'here')}.log"
        with (self._folder / log).open("ab") as heard:
            process = self._start(heard)
        progress = _Progress(self._folder)
        try:
            with _listening() as asked:
                while process.poll() is None:
                    watch()
                    progress.read()
                    if asked.terminated:
                        self._stop(process, TERMINATED, progress)
                        raise Preempted(f"SIGTERM: {_standing(self._folder)}")
                    if any((self._folder / ERRORS).glob("rank*.txt")) or progress.futile:
                        break
                    # Killed, torchrun cannot close the rendezvous of the others on its way out.
                    if leader.look():
                        break
                    sleep(_POLL_SECONDS)
            watch()
        except KeyboardInterrupt:
            self._stop(process, INTERRUPTED, progress)
            raise Interrupted(f"interrupted; {_standing(self._folder)}") from None
        finally:
            _end(process)
        return process.wait()

    def _stop(
        self, process: subprocess.Popen[bytes] | OneRank, why: str, progress: _Progress
    ) -> None:
        """Let the ranks save, for as long as they are given; a second Ctrl-C ends that."""
        if not progress.stepping:
            return
        try:
            (self._folder / STOP).write_text(why)
            deadline = monotonic() + self._grace_seconds
            while process.poll() is None and monotonic() < deadline:
                sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            return


class _Progress:
    """What the events of a run say while it goes."""

    def __init__(self, folder: Path) -> None:
        self._tail = EventTail(folder)
        self._tail.read()
        self._starts = 0
        self.stepping = False
        """The model stands and steps are made."""

    @property
    def futile(self) -> bool:
        """Starts in a row came to nothing."""
        return self._starts > _FUTILE_STARTS

    def read(self) -> None:
        """Take in what is new."""
        for event in self._tail.read():
            self._add(event)

    def _add(self, event: Event) -> None:
        if event.kind == "started":
            self._starts += 1
            self.stepping = False
        elif event.kind == "ready":
            self.stepping = True
        elif event.kind in {"step", "rolled_back"}:
            self._starts = 0


def _end(process: subprocess.Popen[bytes] | OneRank) -> None:
    """End torchrun, if there is one, and its ranks at once: what they had to save is saved."""
    if process.poll() is None:
        ranks = descendants(process.pid)  # in sessions of their own
        for pid in (process.pid, *ranks):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _is_over(folder: Path) -> bool:
    """Whether the run as a whole has ended, wherever."""
    return (folder / RESULT).exists() or any((folder / ERRORS).glob("rank*.txt"))


def _result(folder: Path) -> TrainingRun:
    run = read_record(folder / RESULT, TrainingRun)
    # Another machine of the run was asked.
    if run.stopped == TERMINATED:
        raise Preempted(f"SIGTERM: {_standing(folder)}")
    if run.stopped == INTERRUPTED:
        raise Interrupted(f"interrupted; {_standing(folder)}")
    return run


def _standing(folder: Path) -> str:
    """Where a run that was stopped goes on."""
    found = Store(folder).whole()
    if not found:
        return f"nothing was saved yet; the run lies in {folder}"
    return f"saved after step {found[0].step:,}; the same command goes on from there ({folder})"


def _what_failed(folder: Path, code: int) -> RidgelineError:
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
