"""End a process when its parent ends, however that happens, SIGKILL of the parent included.

On Linux the kernel sends the signal (`PR_SET_PDEATHSIG` of prctl(2)): also to a process that is
stopped or hangs. Elsewhere, and where a sandbox forbids the call, a thread asks for the parent's
process id twice a second; whoever lost its parent has another one then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
"""The number of the request in linux/prctl.h."""
_LOOK_SECONDS = 0.5


def die_with_parent(parent: int | None = None) -> None:
    """Have this process killed when its parent ends; at once if that has happened already.

    Args:
        parent: The parent's process id, where the caller was told; None: whoever it is now.
    """
    expected = os.getppid() if parent is None else parent
    if not _asked_the_kernel():
        watch_parent(expected)
    if os.getppid() != expected:
        _end()  # it ended before we asked


def watch_parent(expected: int) -> None:
    """Look after the parent from a thread, which needs nothing of the system but getppid(2)."""
    threading.Thread(target=_watch, args=(expected,), name="parent-watch", daemon=True).start()


def _asked_the_kernel() -> bool:
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)


def _watch(expected: int) -> None:
    while os.getppid() == expected:
        time.sleep(_LOOK_SECONDS)
    _end()


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
