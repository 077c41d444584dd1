"""The process between the conductor and the script: starts it, and cleans up after it.

    conductor ── lifeline (a pipe) ──► guardian ──► [host ──► init ──►] script ──► its children

The guardian lives outside of everything that is frozen, and in a session of its own. It starts
the script in a view of files and processes of its own (`view.py`) where the kernel permits that,
plainly elsewhere. When the script has ended, or the lifeline says so, or the conductor is gone
without a word, it kills what is left, frozen or not, undoes what was written, notes what that
was in the session's folder, and ends as the script ended.

In a view, `init` is the first process of the script's process namespace: the kernel kills all
others in it when it ends. Run as `python -I -S guardian.py PLAN.json`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from ridgeline.measure.child_tree import descendants
from ridgeline.measure.guard import namespaces, view
from ridgeline.measure.guard.changes import Changes, changes_in, drop
from ridgeline.measure.guard.kept import differences, put_back, snapshot, unprotected
from ridgeline.measure.guard.offline import seen
from ridgeline.measure.guard.surroundings import Surroundings

PLAN_NAME = "guardian.json"
OUTCOME_NAME = "outcome.json"
QUIT = b"q"
"""The word over the lifeline to end, and leave the session's folder to the conductor."""
_NO_VIEW = 97
_NOT_STARTED = 127
_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a guardian is given."""

    words: list[str]
    cwd: str
    session: str
    """The folder that the conductor and the script share."""
    lifeline: int
    """A descriptor to read from: `QUIT`, or the end of the conductor."""
    saved: str
    """Where old contents are kept, where there is no view."""
    shared: bool
    """Other runs keep theirs there too, and the conductor puts them back."""
    covered: bool
    """Whether to try a view."""
    near: list[str]
    """Folders of the script's own files."""

    @property
    def surroundings(self) -> Surroundings:
        """Where the script runs."""
        return Surroundings(cwd=self.cwd, session=self.session, near=tuple(self.near))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the user's files were protected, and what the script would have left."""

    way: str
    """Whether files were protected by a `view` or by `copies`."""
    why: str
    """Why there was no view."""
    count: int
    first: list[str]
    unprotected: list[str]
    """A line for each file that may not be as it was."""
    offline: list[str]
    """Libraries that were kept from sending anything."""

    def write(self, path: Path) -> None:
        """Write it down for the conductor."""
        path.write_text(json.dumps(asdict(self)))


@dataclass(slots=True, kw_only=True)
class _Run:
    """The process to wait for: the script's, or the host of its view."""

    pid: int
    in_view: bool
    why: str = ""
    """Why it has no view."""
    verdict: int | None = None
    """A descriptor to read how the script ended, where its host cannot end likewise."""
    status: int | None = None
    """Exit status of `pid`, once it has ended."""


def main(plan: str) -> NoReturn:
    """Watch over one run."""
    task = Task(**json.loads(Path(plan).read_text()))
    os.set_inheritable(task.lifeline, False)
    if sys.platform == "linux":
        namespaces.adopt_orphans()
    lock = _hold(task)
    places = view.places_for_layers() if task.covered and sys.platform == "linux" else []
    alone = not task.shared  # else others of this job may be writing
    before = snapshot([task.cwd, *task.near]) if alone else {}
    run = _start(task, places)
    deserted = _watch(run, task.lifeline)
    status = _end_all(run)
    lost = unprotected(Path(task.saved))
    changes = _undo(task, lock, deserted=deserted)
    for place in places:
        drop(place)
    if alone:
        named = {line.partition(": ")[0] for line in lost}
        after = differences(before, snapshot([task.cwd, *task.near]))
        lost += [line for line in after if line.partition(": ")[0] not in named]
    if deserted:
        shutil.rmtree(task.session, ignore_errors=True)
    else:
        Outcome(
            way="view" if run.in_view else "copies",
            why=run.why,
            count=changes.count,
            first=list(changes.first),
            unprotected=lost,
            offline=seen(Path(task.session)),
        ).write(Path(task.session, OUTCOME_NAME))
    _end_like(status)


# -- starting ------------------------------------------------------------------------------


def _start(task: Task, places: list[str]) -> _Run:
    """Start the script, in a view if that is permitted."""
    why = "asked to do without" if not task.covered else "only Linux has what it takes"
    if places:
        for processes in (True, False):
            run, why = _start_host(task, places, processes=processes)
            if run is not None:
                return run
    around = task.surroundings
    copies = view.FileView(caches=tuple(around.caches()), downloads=tuple(around.downloads()))
    copies.write(Path(task.session, view.VIEW_NAME))
    guardian = os.getpid()
    pid = os.fork()
    if pid == 0:
        if sys.platform == "linux":
            namespaces.end_with_parent()
            if os.getppid() != guardian:
                os._exit(_NOT_STARTED)
        _become_script(task)
    return _Run(pid=pid, in_view=False, why=why)


def _start_host(task: Task, places: list[str], *, processes: bool) -> tuple[_Run | None, str]:
    """Start a process that builds the view, and the script in it; or say why it cannot."""
    told, tell = os.pipe()
    verdict, judge = os.pipe()
    guardian = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(told)
        os.close(verdict)
        os.close(task.lifeline)
        try:
            _host(task, places, tell, judge, guardian, processes=processes)
        except Exception as error:  # whatever it is: the script starts without a view
            os.write(tell, f"{error or type(error).__name__}".encode())
        os._exit(_NO_VIEW)
    os.close(tell)
    os.close(judge)
    with os.fdopen(told, "rb") as answer:
        why = answer.read().decode()
    if not why:
        return _Run(pid=pid, in_view=True, verdict=verdict if processes else None), ""
    os.close(verdict)
    os.waitpid(pid, 0)
    for place in places:
        drop(place)
        Path(place).mkdir(mode=0o700)
    return None, why


def _host(
    task: Task, places: list[str], tell: int, judge: int, guardian: int, *, processes: bool
) -> NoReturn:
    """Build the view; become the script in it, or wait for the init that starts it."""
    own = task.surroundings.own_folders()
    may_uncover = view.leave_the_world(processes=processes)
    namespaces.end_with_parent()  # after: who gains rights in a namespace loses this
    if os.getppid() != guardian:
        os._exit(_NOT_STARTED)
    built = view.build(places, task.surroundings, own, may_uncover=may_uncover)
    if not processes:
        built.write(Path(task.session, view.VIEW_NAME))
        os.close(tell)
        _become_script(task)
    living, life = os.pipe()
    init = os.fork()
    if init == 0:
        os.close(life)
        try:
            _init(task, built, tell, judge, living)
        except OSError as error:
            os.write(tell, str(error).encode())
        os._exit(_NO_VIEW)
    os.close(living)
    os.close(tell)
    os.close(judge)
    os.waitpid(init, 0)
    os._exit(0)


def _init(task: Task, built: view.FileView, tell: int, judge: int, living: int) -> NoReturn:
    """The first process of the namespace: start the script, and reap all that ends."""
    namespaces.end_with_parent()
    if select.select([living], [], [], 0)[0]:
        os._exit(_NOT_STARTED)  # the host ended before it could be asked for
    namespaces.mount_proc()
    built.write(Path(task.session, view.VIEW_NAME))
    os.close(tell)
    script = os.fork()
    if script == 0:
        _become_script(task)
    while True:
        pid, status = os.wait()
        if pid == script:
            os.write(judge, str(status).encode())
            os._exit(0)


def _become_script(task: Task) -> NoReturn:
    os.setsid()
    os.chdir(task.cwd)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec keeps that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(task.words[0], task.words)  # noqa: S606 - the user's command
    except OSError as error:
        os.write(2, f"{task.words[0]}: {os.strerror(error.errno or 0)}\n".encode())
    os._exit(_NOT_STARTED)


# -- watching ------------------------------------------------------------------------------


def _watch(run: _Run, lifeline: int) -> bool:
    """Wait until the script has ended or shall; is the conductor gone without a word?"""
    ended = os.pidfd_open(run.pid) if hasattr(os, "pidfd_open") else None
    ears = [lifeline] if ended is None else [lifeline, ended]
    while True:
        heard, _, _ = select.select(ears, [], [], _POLL_SECONDS if ended is None else None)
        if lifeline in heard:
            return os.read(lifeline, 1) != QUIT
        pid, status = os.waitpid(run.pid, os.WNOHANG)
        if pid:
            run.status = status
            # Said at the same moment?
            return bool(select.select([lifeline], [], [], 0)[0]) and os.read(lifeline, 1) != QUIT


def _end_all(run: _Run) -> int:
    """Kill what is left of the run; how the script ended, as wait(2) has it."""
    deadline = time.monotonic() + _KILL_SECONDS
    left = _left(run)
    while left and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reap(run)
        left = _left(run)
        if left:
            select.select([], [], [], 0.005)
    _reap(run)
    if run.verdict is not None:
        told = os.read(run.verdict, 16)
        return int(told) if told else signal.SIGKILL
    return signal.SIGKILL if run.status is None else run.status


def _left(run: _Run) -> list[int]:
    return [pid for pid in descendants(os.getpid()) if pid != run.pid or run.status is None]


def _reap(run: _Run) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == run.pid:
            run.status = status


# -- leaving -------------------------------------------------------------------------------


def _hold(task: Task) -> int | None:
    """While this lock is held, somebody may still write what `put_back` would put back."""
    if not task.shared:
        return None
    lock = os.open(Path(task.saved).parent / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def _undo(task: Task, lock: int | None, *, deserted: bool) -> Changes:
    """Everything as it was; returns what was not."""
    noted = Path(task.session, view.VIEW_NAME)
    changes = Changes(count=0, first=())
    if noted.exists():
        changes = changes_in(view.FileView.read(noted), task.cwd)
    if lock is None:
        changes = changes.and_also(put_back(Path(task.saved)))
    elif deserted:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the last of those who share it puts back
        put_back(Path(task.saved))
        shutil.rmtree(Path(task.saved).parent, ignore_errors=True)
    return changes


def _end_like(status: int) -> NoReturn:
    """End as another did."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        _leave_no_core()
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pause()
    os._exit(os.waitstatus_to_exitcode(status))


def _leave_no_core() -> None:
    """This process may have to end by the signal that ended the script: once is enough."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


if __name__ == "__main__":
    main(sys.argv[1])
