"""The tree of typed errors. Each class knows the exit code that the command line ends with.

    RidgelineError              1   our own failure
    ├── InputError              2   what the user gave is wrong: a flag, a file, a value
    │   ├── MissingExtra        2   an optional dependency is not installed
    │   ├── ExportError         2   a module that another runtime cannot take: whose line, what cure
    │   ├── NotCounted          2   a vision network whose operators no sample of inputs shows
    │   └── ScriptError         2   the user's own script failed (it also fails without us)
    ├── ChildDied               1   the measured process was killed or vanished
    ├── OurDefect               1   the user's script fails, but not without us
    ├── Regression              3   slower (`compare`) or worse (`compress`) than allowed
    ├── Interrupted           130   Ctrl-C, with what is left and how to go on
    └── Preempted             143   SIGTERM, the same

A message is one line: what was wrong, where, and what to do about it.
"""

from __future__ import annotations

import errno
import os

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of an OSError where the disk, the quota or the largest file is full."""


def in_words(error: BaseException) -> str:
    r"""What an error says, in one line: without the number and the path that Python adds to it.

    >>> in_words(FileNotFoundError(2, "No such file or directory", "a.csv"))
    'No such file or directory'
    >>> in_words(ValueError("no such token\nwhile reading the vocabulary")), in_words(ValueError())
    ('no such token', 'ValueError')
    """
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    if getattr(error, "strerror", None):
        return str(error.strerror)  # type: ignore[attr-defined]
    try:
        said = str(error)
    except Exception:
        said = ""
    return (said.strip().splitlines() or [type(error).__name__])[0]


def no_room(error: BaseException) -> bool:
    """Whether a disk is full, whoever says so: safetensors and torch raise errors of their own.

    >>> no_room(OSError(errno.ENOSPC, "No space left on device")), no_room(ValueError("9"))
    (True, False)
    """
    number = error.errno if isinstance(error, OSError) else None
    return number in NO_ROOM or os.strerror(errno.ENOSPC) in str(error)


class RidgelineError(Exception):
    """Root of the tree; carries the exit code of its kind."""

    exit_code = 1

    def __init__(self, message: str = "", *, details: str = "") -> None:
        super().__init__(message)
        self.details = details
        """Lines to show above the message: a traceback of the user's script."""


class InputError(RidgelineError):
    """What the user gave cannot be used. The message names it and the cure."""

    exit_code = 2


class MissingExtra(InputError):
    """A command needs an extra that is not installed."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(
            f"{module} is not installed; run: pip install 'ridgeline[{extra}]'",
        )


class ExportError(InputError):
    """A module cannot be converted for another runtime: the line or operator, and the cure."""

    def __init__(self, message: str, *, kind: str, log: str = "") -> None:
        kept = f" (the whole message: {log})" if log else ""
        super().__init__(message + kept)
        self.kind = kind
        """Which of the known kinds of failure, e.g. `data-dependent-shape`."""
        self.log = log
        """File with what torch and the runtime said; empty where they said nothing."""


class NotCounted(InputError):
    """A network's operators cannot be counted, and another sample of its inputs would not help.

    What it finds in an image decides what runs, or the message asks for a sample already.
    """


class ScriptError(InputError):
    """The user's script ended with an error of its own."""


class ChildDied(RidgelineError):
    """The measured process was killed, or stopped answering."""


class OurDefect(RidgelineError):
    """The user's script failed under us, and runs without us."""


class Interrupted(RidgelineError):
    """Ctrl-C in a job that can be resumed."""

    exit_code = 130


class Preempted(RidgelineError):
    """SIGTERM in a job that can be resumed: the scheduler wants the machine."""

    exit_code = 143


class Regression(RidgelineError):
    """`compare` found a slowdown beyond noise, or `compress` a loss beyond what was allowed."""

    exit_code = 3
