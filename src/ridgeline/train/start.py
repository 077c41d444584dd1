"""Start the ranks of a run on this machine and watch over them; `ending.py` says what came of it.

torchrun starts and ends the processes, and starts them all again when one of them died; a single
one needs no torchrun (`one_rank.py`). All of them end with this process, even if it is killed
(`agent.py`). What they print goes to `logs/`. A run whose folder has checkpoints goes on from the
newest. Imports no torch: the processes do.

The ranks on one machine have as many threads as there are cores, asleep where none is free.
"""

from __future__ import annotations

import hashlib
import os
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

from ridgeline.errors import InputError, Interrupted, Preempted
from ridgeline.hardware.core_pressure import sleeping_threads
from ridgeline.hardware.machine import this_machine
from ridgeline.measure.child_tree import descendants
from ridgeline.records.input_file import read_toml
from ridgeline.records.recipe import Recipe
from ridgeline.records.recipe_file import anchored, write_recipe
from ridgeline.records.recipe_survival import RecipeSurvive
from ridgeline.records.training_run import FILE as LOG
from ridgeline.records.training_run import TrainingRun
from ridgeline.train.checkpoint.same_run import check_same_run
from ridgeline.train.checkpoint.store import Store
from ridgeline.train.ending import is_over, result_of, standing, what_failed
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
from ridgeline.train.nodes import LeadingMachine, Nodes
from ridgeline.train.one_rank import OneRank
from ridgeline.train.survive.events import Event, EventLog, event_tail
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
_FUTILE_STARTS = 3
"""In a row, without a step: the next would do no better."""


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
    given, told = _environment(recipe, os.environ if environment is None else environment, nodes)
    if nodes is None or nodes.leads():
        _make_ready(recipe, folder, fresh=fresh, note=told)
    leader = LeadingMachine(None if nodes is None or nodes.leads() else nodes)
    ranks = _Ranks(_starter(recipe, folder, nodes, given), given, folder, recipe.survive)
    while True:
        code = ranks.run(watch, leader)
        if not leader.lost or is_over(folder) or not leader.came_back():
            break
    if code:
        raise what_failed(folder, code)
    return result_of(folder)


def _make_ready(recipe: Recipe, folder: Path, *, fresh: bool, note: str) -> None:
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
    log.write("launched", note=note)
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
    """A name of the run that is equal on all machines, which share the folder."""
    return hashlib.blake2b(str(folder.resolve()).encode(), digest_size=8).hexdigest()


def _environment(
    recipe: Recipe, given: Mapping[str, str], nodes: Nodes | None
) -> tuple[dict[str, str], str]:
    """The environment of the ranks here, and what there is to tell of it."""
    ranks = recipe.layout.num_devices // (nodes.most if nodes else 1)
    threads, told = thread_variables(ranks, given)
    # With torchrun's own store, ranks that start again find the addresses of the dead in it.
    ours = {**threads, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    host = {} if nodes is None else {HOST: nodes.address()}
    return {**ours, **host, **_KEPT_PAGES, **given}, told


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

    def run(self, watch: Callable[[], None], leader: LeadingMachine) -> int:
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
                        raise Preempted(f"SIGTERM: {standing(self._folder)}")
                    if any((self._folder / ERRORS).glob("rank*.txt")) or progress.futile:
                        break
                    # Killed, torchrun cannot close the rendezvous of the others on its way out.
                    if leader.look():
                        break
                    sleep(_POLL_SECONDS)
            watch()
        except KeyboardInterrupt:
            self._stop(process, INTERRUPTED, progress)
            raise Interrupted(f"interrupted; {standing(self._folder)}") from None
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
        self._tail = event_tail(folder)
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


def thread_variables(num_ranks: int, given: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The variables that ranks get for their threads, and what there is to tell.

    Args:
        num_ranks: Ranks on this machine, which share its cores.
        given: The environment so far, of which nothing is changed.
    """
    cores = this_machine(gpus=[]).cpu.num_usable_cores
    threads = {"OMP_NUM_THREADS": given.get("OMP_NUM_THREADS", str(max(1, cores // num_ranks)))}
    waiting, told = sleeping_threads({**given, **threads})
    return threads | waiting, told
