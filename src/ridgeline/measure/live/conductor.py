"""Start a script under interception and tell it, block by block, how many steps to run.

    with Conductor(["train.py"], Session()) as run:
        block = run.steps(20)            # one Report per rank, rank 0 first
        look = run.steps(3, "operators")
    # leaving the block stops the script at its last step boundary, and puts back what it saved

While it waits for an order the script is frozen (SIGSTOP to its whole process tree), so that
its loader workers and helper threads cannot work ahead or disturb a process measured beside it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from ridgeline.errors import ChildDied, ScriptError
from ridgeline.measure.child.guard import MISHAPS_NAME
from ridgeline.measure.guard.guardian import Outcome, Task
from ridgeline.measure.guard.kept import put_back
from ridgeline.measure.guard.offline import offline_variables
from ridgeline.measure.guard.start import Guarded
from ridgeline.measure.guard.terminal import size_of
from ridgeline.measure.guard.view import SESSION_NAME
from ridgeline.measure.live.command import resolve, script_path
from ridgeline.measure.live.crash import ScriptFailed, crash_of, told_of_no_step
from ridgeline.measure.live.patience import OutOfPatience, Patience
from ridgeline.measure.live.script_process import ScriptProcess
from ridgeline.measure.wire import SOCKET_NAME, Hello, Instrument, Order, Report, Session

BOOTSTRAP_FOLDER = Path(__file__).parents[1] / "bootstrap"
VIEW_VARIABLE = "RIDGELINE_VIEW"
"""Environment variable; `off` protects files from inside, as where the kernel permits no view."""
ENTRY = "ridgeline.measure.child.attach:attach"
_LONGEST_FOLDER = 70
_LEAVE_SECONDS = 20.0
_POLL_SECONDS = 0.25
_TAIL_BYTES = 64_000
"""Kept of what a script printed: a traceback through a compiler has a hundred frames."""
_OUTSIDE_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""These come from outside: a user, a scheduler, the kernel that ran out of memory."""


class Conductor:
    """One run of one command. Not reusable."""

    def __init__(
        self,
        command: list[str],
        session: Session,
        *,
        entry: str = ENTRY,
        cwd: Path | None = None,
        patience_seconds: float | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        self.command = command
        self.hellos: list[Hello] = []
        self.ended = False
        """The script ran to its own end."""
        self._entry = entry
        self.outcome: Outcome | None = None
        """How the user's files were protected, and what the script would have left; at the end."""
        self._folder = Path(tempfile.mkdtemp(prefix="ridgeline-", dir=_short_folder())).resolve()
        self._shared = session.saved_folder is not None
        """Does somebody else put back what the script overwrites?"""
        if not self._shared:
            session = msgspec.structs.replace(session, saved_folder=str(self._folder / "saved"))
        self._session = msgspec.structs.replace(session, terminal=size_of(1))
        self._log_path = self._folder / "output.log"
        self._cwd = cwd
        self._patience = Patience(
            command,
            self._folder,
            seconds=patience_seconds,
            on_progress=on_progress,
        )
        self._timed_some = False
        self._connections: list[Connection] = []
        self._first: list[Report] = []
        self._untold: list[Report] = []
        """The same, until losses and updates of it were handed on."""
        self._last_output = ""
        self._process: ScriptProcess | None = None

    def __enter__(self) -> Self:
        self._patience.start()
        (self._folder / SESSION_NAME).write_bytes(msgspec.json.encode(self._session))
        self._listener = Listener(str(self._folder / SOCKET_NAME), family="AF_UNIX")
        self._log = self._log_path.open("ab")
        try:
            self._process = ScriptProcess(
                start(
                    resolve(self.command),
                    self._log,
                    child_environment(self._folder, self._entry)
                    | offline_variables(self._folder)
                    | self._session.environment,
                    self._task(),
                )
            )
        except BaseException:
            self._kill()
            self._clean()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self.ended:
                self.stop()
            elif kind is not None and issubclass(kind, KeyboardInterrupt):
                self._script.interrupt()
        finally:
            try:
                self._kill()
            finally:
                self._clean()

    def _task(self) -> Task:
        """What the guardian has to know."""
        assert self._session.saved_folder is not None
        script = script_path(self.command)
        return Task(
            words=[],
            cwd=str((self._cwd or Path.cwd()).resolve()),
            session=str(self._folder),
            lifeline=-1,
            saved=self._session.saved_folder,
            shared=self._shared,
            covered=os.environ.get(VIEW_VARIABLE) != "off",
            near=[str(script.parent)] if script is not None else [],
        )

    def wait_for(self, seconds: float | None) -> None:
        """Give each answer from now on so long, and no more; None: for ever."""
        self._patience.give_each(seconds)

    @property
    def is_running(self) -> bool:
        """The process that was started is still there, frozen or not."""
        return self._process is not None and self._process.exit_code is None

    @property
    def output(self) -> str:
        """The end of what the script printed."""
        if not self._log_path.exists():
            return self._last_output
        with self._log_path.open("rb") as log:
            log.seek(max(0, self._log_path.stat().st_size - _TAIL_BYTES))
            return log.read().decode(errors="replace").strip()

    @property
    def first_step(self) -> list[Report]:
        """The very first step on every rank, from the first call of a model on."""
        return self._first

    def begin(self) -> list[Report]:
        """Wait for the script's very first step; what it was, one report per rank.

        Raises:
            ScriptError: the script failed, or ended without a single step.
            ChildDied: it was killed.
        """
        if not self._connections:
            self._gather()
            self._untold = self._first
        return self._first

    def steps(
        self,
        count: int,
        instrument: Instrument = "none",
        *,
        facts: bool = False,
        within_seconds: float | None = None,
        calls: bool = False,
        period_seconds: float | None = None,
    ) -> list[Report]:
        """Run `count` steps on every rank; one report per rank, rank 0 first.

        A script of one rank stops earlier, at the first boundary after `within_seconds`; ranks
        that talk to each other could not agree on where. With `calls` each step is noted for
        itself, one every `period_seconds` where that is given.

        The script's very first step is not among them (much happens in it only once), but its
        loss is. A script that ends before gives reports with `ended=True` and fewer steps.

        Raises:
            ScriptError: the script failed, or ended without a single step.
            ChildDied: it was killed.
        """
        self.begin()
        first, self._untold = self._untold, []
        if self.ended:
            return first or [Report(steps=[], losses=[], ended=True) for _ in self._connections]
        alone = within_seconds if len(self._connections) == 1 else None
        order = Order(
            action="run",
            steps=count,
            instrument=instrument,
            facts=facts,
            within_seconds=alone,
            calls=calls,
            period_seconds=period_seconds,
        )
        self._script.thaw()
        for connection in self._connections:
            try:
                connection.send_bytes(msgspec.msgpack.encode(order))
            except OSError:
                self._script.wait(_LEAVE_SECONDS)
                self._raise_ended("while it was measured")
        reports = [self._receive(connection) for connection in self._connections]
        self._timed_some |= bool(reports[0].steps)
        self._after(reports)
        if not first:
            return reports
        return [
            msgspec.structs.replace(
                report,
                losses=before.losses + report.losses,
                updates=before.updates.and_then(report.updates),
            )
            for before, report in zip(first, reports, strict=True)
        ]

    def stop(self) -> None:
        """Let the script leave at its step boundary; give it time to end by itself."""
        if self._process is not None:
            self._process.thaw()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it is gone already
                connection.send_bytes(msgspec.msgpack.encode(Order(action="stop")))
        if self._process is not None and self._connections:
            self._process.wait(_LEAVE_SECONDS)

    def outlast(self, seconds: float) -> int | None:
        """Wait until the script has ended, for so long; its exit code, None when it goes on."""
        return self._script.wait(seconds)

    @property
    def _script(self) -> ScriptProcess:
        assert self._process is not None, "only between entering and leaving"
        return self._process

    # -- conversation ----------------------------------------------------------------------

    def _gather(self) -> None:
        """Wait until every rank has said hello and reported its first step."""
        first: list[Report] = []
        world = 1
        while len(self._connections) < world:
            connection, hello = self._accept()
            report = self._receive(connection)
            if hello.rank in {known.rank for known in self.hellos}:
                # A process beside the ones we watch (an evaluation, a simulator).
                connection.send_bytes(msgspec.msgpack.encode(Order(action="free")))
                continue
            world = hello.world_size
            self._connections.append(connection)
            self.hellos.append(hello)
            first.append(report)
        ranks = sorted(range(world), key=lambda index: self.hellos[index].rank)
        self._connections = [self._connections[i] for i in ranks]
        self.hellos = [self.hellos[i] for i in ranks]
        self._first = [first[i] for i in ranks]
        self._after(self._first)

    def _after(self, reports: list[Report]) -> None:
        if any(report.ended for report in reports):
            self.ended = True
            if self._script.wait(_LEAVE_SECONDS):
                self._raise_ended("while it was measured")
        else:
            self._script.freeze()

    def _accept(self) -> tuple[Connection, Hello]:
        listening = self._listener._listener._socket  # type: ignore[attr-defined]
        self._patience.begin_wait()
        while not wait([listening], timeout=_POLL_SECONDS):
            self._check_alive("before its first step")
        connection = self._listener.accept()
        hello = msgspec.msgpack.decode(self._read(connection), type=Hello)
        return connection, msgspec.structs.replace(hello, pid=_pid_of(connection) or hello.pid)

    def _receive(self, connection: Connection) -> Report:
        return msgspec.msgpack.decode(self._read(connection), type=Report)

    def _read(self, connection: Connection) -> bytes:
        self._patience.begin_wait()
        while not connection.poll(_POLL_SECONDS):
            self._check_alive("while it was measured")
        try:
            return connection.recv_bytes()
        except (EOFError, OSError):
            self._script.wait(_LEAVE_SECONDS)
            self._raise_ended("while it was measured")
            raise  # unreachable: the line above always raises

    def _check_alive(self, when: str) -> None:
        if self._script.exit_code is not None:
            self._raise_ended(when)
        try:
            self._patience.check(when, stepped=bool(self.hellos), timed=self._timed_some)
        except OutOfPatience as over:
            # It may wait for processes of its own that have died.
            crash = crash_of(0, self.output)
            if not crash.traceback:
                raise
            told = f"{over}; the last error that it printed: {crash.what}"
            raise OutOfPatience(told, details=crash.traceback) from None

    def _raise_ended(self, when: str) -> None:
        code = self._script.exit_code
        self.ended = True
        command = " ".join(self.command)
        if code is not None and -code in _OUTSIDE_SIGNALS:
            name = signal.Signals(-code).name
            raise ChildDied(f"`{command}` was killed by {name} {when}")
        crash = crash_of(code or 0, self.output)
        if code is None or code == 0:
            raise ScriptError(
                told_of_no_step(command, when, crash),
                details="\n".join(filter(None, [crash.traceback, *self.mishaps()])),
            )
        raise ScriptFailed(self.command, crash, self._patience.run_seconds)

    def mishaps(self) -> list[str]:
        """Where our own code failed in the script's process, for want of a report that says so."""
        path = self._folder / MISHAPS_NAME
        return path.read_text(errors="replace").splitlines() if path.exists() else []

    def _kill(self) -> None:
        if self._process is None:
            return
        self.outcome = self._process.kill()
        if not (self._process.is_guarded or self._shared):
            put_back(self._folder / "saved")  # nobody else does

    def _clean(self) -> None:
        for connection in self._connections:
            connection.close()
        self._listener.close()
        self._log.close()
        self._last_output = self.output
        shutil.rmtree(self._folder, ignore_errors=True)


def _short_folder() -> str:
    """The temporary folder, unless a socket in it would have too long a name (108, unix(7))."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= _LONGEST_FOLDER else "/tmp"  # noqa: S108 - a folder in it


def start(
    words: list[str], log: BinaryIO, environment: dict[str, str], task: Task
) -> subprocess.Popen[bytes]:
    """The user's command under a guardian, deaf; it prints into `log`."""
    return Guarded(words, log, environment, task)


def child_environment(folder: Path, entry: str) -> dict[str, str]:
    """The environment in which the script runs: ours, plus the bootstrap."""
    environment = dict(os.environ)
    path = [str(BOOTSTRAP_FOLDER)]
    if environment.get("PYTHONPATH"):
        path.append(environment["PYTHONPATH"])
    environment["PYTHONPATH"] = os.pathsep.join(path)
    environment["RIDGELINE_SESSION"] = str(folder)
    environment["RIDGELINE_ENTRY"] = entry
    return environment


def _pid_of(connection: Connection) -> int | None:
    """The process at the other end, as it is called here: it may have a namespace of its own."""
    if sys.platform != "linux":
        return None
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        pid, _, _ = struct.unpack(
            "3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
    return int(pid)
