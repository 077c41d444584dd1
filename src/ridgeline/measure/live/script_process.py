"""The processes that the user's command became: frozen and thawed, interrupted, killed.

The command runs below a guardian (`measure/guard/guardian.py`), which is no part of the script
and stays awake. Tests start scripts without one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable

from ridgeline.measure.child_tree import descendants
from ridgeline.measure.guard.guardian import Outcome
from ridgeline.measure.guard.start import Guarded

_INTERRUPT_SECONDS = 5.0


class ScriptProcess:
    """One started command with everything below it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._frozen: list[int] = []

    @property
    def is_guarded(self) -> bool:
        """Does a guardian put back what the script changes?"""
        return isinstance(self._process, Guarded)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the command; None while it runs, frozen or not."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Wait for the end, for so long; the exit code, None when it goes on."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll()

    def freeze(self) -> None:
        """Stop the whole tree where it stands."""
        self._frozen = descendants(self._process.pid)
        if not self.is_guarded:  # a guardian has to stay awake
            self._frozen.insert(0, self._process.pid)
        _signal_all(self._frozen, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the tree go on, children before their parents."""
        _signal_all(reversed(self._frozen), signal.SIGCONT)
        self._frozen = []

    def interrupt(self) -> None:
        """Let the script know of a Ctrl-C as the terminal would, and give it time to end."""
        if self.exit_code is not None:
            return
        self.thaw()
        script = self._script_pid()
        if script is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(script, signal.SIGINT)
            self.wait(_INTERRUPT_SECONDS)

    def kill(self) -> Outcome | None:
        """End what is left of it; what its guardian found, where it has one."""
        if isinstance(self._process, Guarded):
            self._process.end()
            return self._process.outcome()
        tree = [self._process.pid, *descendants(self._process.pid)]
        if self.exit_code is None or len(tree) > 1:
            _signal_all(tree, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # orphans of the same session
        self._process.wait()
        return None

    def _script_pid(self) -> int | None:
        """The process of the user's command, which leads a process group of its own."""
        if not self.is_guarded:
            return self._process.pid
        for pid in descendants(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) == pid:
                    return pid
        return None


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, number)
