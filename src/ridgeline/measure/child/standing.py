"""Where the script stands before its first step and in a long one, for whoever waits for it.

A thread writes the line of the user's code that the main thread is on into the session's folder,
and how often a model was called, every other second, until there are steps to tell of, and again
in each step that takes long. It reads frames and touches nothing; where a script calls its model
for so long that the training, or the end of the first step, will not come in time, it lets the
calls be the steps.
"""

from __future__ import annotations

import math
import os
import socket
import stat
import sys
import threading
from pathlib import Path
from time import monotonic, process_time
from types import FrameType

import msgspec

from ridgeline.measure.child.agent import Agent
from ridgeline.measure.child.guard import attempt, guarded, tell
from ridgeline.measure.child.sites import user_site
from ridgeline.measure.wire import STANDING_NAME, Standpoint, Waits
from ridgeline.records import Site

_INTERVAL_SECONDS = 2.0
_LONG_STEP_SECONDS = 3.0
"""A step that goes on for longer is told of."""
_MANY_CALLS = 8
"""So many calls of a model are enough to measure them."""
_IDLE_SHARE = 0.05
"""A process that computes for less of the time waits for something outside of it."""
_COMPILERS = (
    "torch._dynamo.convert_frame",
    "torch._inductor.graph",
    "torch._inductor.async_compile",
)
"""Modules with a frame on the stack while a graph is compiled, and not while it runs."""


class Standing:
    """Tells until stopped; a forked child has no such thread and tells nothing."""

    def __init__(self, folder: Path, agent: Agent, waits: Waits | None) -> None:
        self._agent = agent
        self._waits = waits
        self._file = folder / STANDING_NAME
        self._done = threading.Event()
        self._stepping_since = 0.0
        """When the step at hand began, on `monotonic`'s clock; infinite where none is run, 0 before
        the first."""
        self._idle = _IdleSince()
        self._thread = threading.Thread(target=self._run, daemon=True, name="ridgeline-standing")

    def start(self) -> None:
        """Begin to tell where the script stands."""
        self._thread.start()

    def step(self) -> None:
        """A step begins, and may take long."""
        self._stepping_since = monotonic()

    def rest(self) -> None:
        """A step has ended; whether another comes is not known."""
        self._stepping_since = math.inf

    def stop(self) -> None:
        """Nobody waits any more."""
        self._done.set()

    @guarded()
    def _run(self) -> None:
        main = threading.main_thread().ident or 0
        while not self._done.wait(_INTERVAL_SECONDS):
            since = self._stepping_since
            if since and monotonic() - since < _LONG_STEP_SECONDS:
                continue
            self._idle.look()
            frame = sys._current_frames().get(main)
            site = user_site(frame) if frame is not None else None
            compiles = _is_compiling(frame)
            del frame  # a frame that outlives its call would free its locals in this thread
            if site is None:
                continue
            calls = 0 if since else self._agent.calls_before_training
            self._tell_where(site, calls, compiles=compiles)
            if since:
                continue
            if self._waits is not None and calls >= _MANY_CALLS:
                self._end_wait(self._waits, site, calls)
            elif self._waits is not None and self._agent.backwards_before_a_step:
                self._end_wait_for_optimizer(self._waits, site)

    def _tell_where(self, site: Site, calls: int, *, compiles: bool) -> None:
        told = Standpoint(
            where=f"{site} in {site.function}",
            calls=calls,
            has_begun=self._agent.latest_model is not None,
            compiles=compiles,
            listens=attempt(_listens_at, otherwise=""),
            evaluates=self._agent.clock.is_inside("evaluation"),
            idle_seconds=self._idle.seconds,
        )
        beside = self._file.with_suffix(f".{os.getpid()}")
        beside.write_bytes(msgspec.json.encode(told))
        beside.replace(self._file)

    def _end_wait(self, waits: Waits, site: Site, calls: int) -> None:
        """Let the calls be the steps, where what they wait for has not come in time."""
        builds = self._agent.keeps_gradients
        if monotonic() < (waits.step_until if builds else waits.training_until):
            return
        self._waits = None
        self._agent.let_calls_be_steps()
        missing = "no step ended" if builds else "nothing trained"
        tell(
            f"in {monotonic() - waits.since:.0f} s a model was called {calls} times and {missing} "
            f"({site} in {site.function}): these calls are what is measured; a longer --budget "
            f"waits for the {'step' if builds else 'training'}"
        )

    def _end_wait_for_optimizer(self, waits: Waits, site: Site) -> None:
        """Let the backwards end steps, where the optimizer's has not come in time."""
        if monotonic() < waits.step_until:
            return
        self._waits = None
        count = self._agent.backwards_before_a_step
        self._agent.let_backwards_be_steps()
        tell(
            f"in {monotonic() - waits.since:.0f} s {count} backward(s) ran and no optimizer "
            f"stepped ({site} in {site.function}): from here on each backward ends a step, as of "
            "micro-batches; a longer --budget waits for the whole step"
        )


class _IdleSince:
    """For how long this process has computed nothing, by the looks that are taken of it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._looked, self._used = monotonic(), process_time()

    def look(self) -> None:
        """See what was computed since the last look."""
        now, used = monotonic(), process_time()
        passed, computed = now - self._looked, used - self._used
        self._looked, self._used = now, used
        self.seconds = self.seconds + passed if computed < _IDLE_SHARE * passed else 0.0


def _listens_at() -> str:
    """The address of the first socket at which this process waits for connections; or none.

    That of a process group's store is no server of the script's.
    """
    open_files = Path("/proc/self/fd")
    if _has_process_group() or not open_files.is_dir():
        return ""
    for entry in open_files.iterdir():
        address = _listening_address(int(entry.name))
        if address:
            return address
    return ""


def _has_process_group() -> bool:
    distributed = sys.modules["torch"].distributed
    return bool(distributed.is_available() and distributed.is_initialized())


def _listening_address(descriptor: int) -> str:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return ""
        with socket.socket(fileno=os.dup(descriptor)) as one:
            internet = one.family in (socket.AF_INET, socket.AF_INET6)
            if internet and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                host, port = one.getsockname()[:2]
                return f"{host}:{port}"
    except OSError:
        pass  # closed meanwhile, or of a kind that Python does not know
    return ""


def _is_compiling(frame: FrameType | None) -> bool:
    """Does a stack stand inside of `torch.compile`, forward or backward?"""
    while frame is not None:
        if frame.f_globals.get("__name__") in _COMPILERS:
            return frame.f_code.co_name != "<module>"  # else it is being imported
        frame = frame.f_back
    return False
