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
import subprocess
import tempfile
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from ridgeline.errors import ChildDied, ScriptError
from ridgeline.measure.child.saved_files import put_back
from ridgeline.measure.child_tree import descendants
from ridgeline.measure.command import resolve
from ridgeline.measure.wire import (
    SESSION_NAME,
    SOCKET_NAME,
    Hello,
    Instrument,
    Order,
    Report,
    Session,
)

BOOTSTRAP_FOLDER = Path(__file__).parent / "bootstrap"
ENTRY = "ridgeline.measure.child.attach:attach"
_LEAVE_SECONDS = 20.0
_POLL_SECONDS = 0.25


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
    ) -> None:
        self.command = command
        self.hellos: list[Hello] = []
        self.ended = False
        """The script ran to its own end."""
        self._entry = entry
        self._folder = Path(tempfile.mkdtemp(prefix="ridgeline-"))
        self._saved = self._folder / "saved" if session.saved_folder is None else None
        """What the script overwrites, where nobody else looks after it."""
        if self._saved is not None:
            session = msgspec.structs.replace(session, saved_folder=str(self._saved))
        self._session = session
        self._log_path = self._folder / "output.log"
        self._cwd = cwd
        self.patience_seconds = patience_seconds
        """How long it may not answer; None: for ever. May be changed between orders."""
        self._waiting_since = 0.0
        self._connections: list[Connection] = []
        self._first: list[Report] = []
        self._frozen: list[int] = []
        self._last_output = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        (self._folder / SESSION_NAME).write_bytes(msgspec.json.encode(self._session))
        self._listener = Listener(str(self._folder / SOCKET_NAME), family="AF_UNIX")
        self._log = self._log_path.open("ab")
        try:
            self._process = start(
                resolve(self.command),
                self._log,
                child_environment(self._folder, self._entry),
                self._cwd,
            )
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self.ended:
            self.stop()
        self._kill()
        if self._saved is not None and not self.ended:
            put_back(self._saved)
        self._clean()

    @property
    def is_running(self) -> bool:
        """The process that was started is still there, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def output(self) -> str:
        """The end of what the script printed."""
        if not self._log_path.exists():
            return self._last_output
        text = self._log_path.read_bytes()[-8000:].decode(errors="replace")
        return text.strip()

    def steps(
        self,
        count: int,
        instrument: Instrument = "none",
        *,
        facts: bool = False,
        within_seconds: float | None = None,
    ) -> list[Report]:
        """Run `count` steps on every rank; one report per rank, rank 0 first.

        A script of one rank stops earlier, at the first boundary after `within_seconds`; ranks
        that talk to each other could not agree on where.

        The script's very first step is not among them (nobody timed its beginning), but its
        loss is. A script that ends before gives reports with `ended=True` and fewer steps.

        Raises:
            ScriptError: the script failed, or ended without a single step.
            ChildDied: it was killed.
        """
        first: list[Report] = []
        if not self._connections:
            self._gather()
            first = self._first
        if self.ended:
            return first or [Report(steps=[], losses=[], ended=True) for _ in self._connections]
        alone = within_seconds if len(self._connections) == 1 else None
        order = Order(
            action="run", steps=count, instrument=instrument, facts=facts, within_seconds=alone
        )
        self._thaw()
        for connection in self._connections:
            try:
                connection.send_bytes(msgspec.msgpack.encode(order))
            except OSError:
                self._await_end()
                self._raise_ended("while it was measured")
        reports = [self._receive(connection) for connection in self._connections]
        self._after(reports)
        if not first:
            return reports
        return [
            msgspec.structs.replace(report, losses=before.losses + report.losses)
            for before, report in zip(first, reports, strict=True)
        ]

    def stop(self) -> None:
        """Let the script leave at its step boundary; give it time to end by itself."""
        self._thaw()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # it is gone already
                connection.send_bytes(msgspec.msgpack.encode(Order(action="stop")))
        if self._process is not None and self._connections:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_SECONDS)

    def freeze(self) -> None:
        """Stop the whole process tree where it stands."""
        assert self._process is not None
        self._frozen = [self._process.pid, *descendants(self._process.pid)]
        _signal_all(self._frozen, signal.SIGSTOP)

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
            self._await_end()
            if self._process is not None and self._process.poll():
                self._raise_ended("while it was measured")
        else:
            self.freeze()

    def _accept(self) -> tuple[Connection, Hello]:
        listening = self._listener._listener._socket  # type: ignore[attr-defined]
        self._waiting_since = time.monotonic()
        while not wait([listening], timeout=_POLL_SECONDS):
            self._check_alive("before its first step")
        connection = self._listener.accept()
        hello = msgspec.msgpack.decode(self._read(connection), type=Hello)
        return connection, hello

    def _receive(self, connection: Connection) -> Report:
        return msgspec.msgpack.decode(self._read(connection), type=Report)

    def _read(self, connection: Connection) -> bytes:
        self._waiting_since = time.monotonic()
        while not connection.poll(_POLL_SECONDS):
            self._check_alive("while it was measured")
        try:
            return connection.recv_bytes()
        except (EOFError, OSError):
            self._await_end()
            self._raise_ended("while it was measured")
            raise  # unreachable: the line above always raises

    def _check_alive(self, when: str) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            self._raise_ended(when)
        waited = time.monotonic() - self._waiting_since
        if self.patience_seconds is not None and waited > self.patience_seconds:
            raise ScriptError(
                f"`{' '.join(self.command)}` did not answer for {waited:.0f} s {when}; give it "
                "more time with --budget, or less to do before it trains"
            )

    def _await_end(self) -> None:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_SECONDS)

    def _raise_ended(self, when: str) -> None:
        assert self._process is not None
        code = self._process.poll()
        self.ended = True
        command = " ".join(self.command)
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            raise ChildDied(f"`{command}` was killed by {name} {when}")
        if code is None or code == 0:
            raise ScriptError(
                f"`{command}` ended {when}: no optimizer step and no repeated call of a model "
                "was seen; is this the script that trains?",
            )
        raise ScriptError(f"`{command}` failed (exit code {code}): {_last_line(self.output)}")

    # -- processes -------------------------------------------------------------------------

    def _thaw(self) -> None:
        _signal_all(reversed(self._frozen), signal.SIGCONT)
        self._frozen = []

    def _kill(self) -> None:
        if self._process is None:
            return
        tree = [self._process.pid, *descendants(self._process.pid)]
        if self._process.poll() is None or len(tree) > 1:
            _signal_all(tree, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # orphans of the same session
        self._process.wait()

    def _clean(self) -> None:
        for connection in self._connections:
            connection.close()
        self._listener.close()
        self._log.close()
        self._last_output = self.output
        shutil.rmtree(self._folder, ignore_errors=True)


def start(
    words: list[str], log: BinaryIO, environment: dict[str, str], cwd: Path | None
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, deaf, that prints into `log`."""
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        cwd=cwd,
        start_new_session=True,
    )


def child_environment(folder: Path, entry: str) -> dict[str, str]:
    """The environment in which the script runs: ours, plus the bootstrap."""
    environment = dict(os.environ)
    path = [str(BOOTSTRAP_FOLDER)]
    if environment.get("PYTHONPATH"):
        path.append(environment["PYTHONPATH"])
    environment["PYTHONPATH"] = os.pathsep.join(path)
    environment["RIDGELINE_SESSION"] = str(folder)
    environment["RIDGELINE_ENTRY"] = entry
    environment["RIDGELINE_CONDUCTOR"] = str(os.getpid())
    return environment


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, number)


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
