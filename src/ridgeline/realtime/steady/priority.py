"""Priority of the real-time class: a worker that wakes up runs at once, whatever else runs.

Under SCHED_FIFO a thread runs until it waits or one of higher priority wakes (sched(7)). Threads
and processes that a worker starts begin without it (SCHED_RESET_ON_FORK), so that a helper process
of a stage cannot take a core for good; the threads that torch computes with are raised by name of
their process, at the end of the warm-up.
"""

from __future__ import annotations

import contextlib
import os
import resource

from ridgeline.errors import in_words
from ridgeline.records.realtime_run import SteadyMeasure

NAME = "fifo"
PRIORITY = 49
"""One below the kernel's own interrupt threads (50, where it runs interrupts as threads), so that
the frames of a camera and of the network still arrive beside a busy stage."""


class FifoPriority:
    """Raises each worker as it enters, and knows what each was before."""

    def __init__(self, priority: int = PRIORITY) -> None:
        self._priority = priority
        self._before: dict[int, tuple[int, os.sched_param]] = {}
        self._granted: dict[str, int] = {}
        self._refused = ""

    def enter(self, worker: str, thread: int) -> None:
        """Give the thread of a worker real-time priority; one that has ended needs none."""
        if not hasattr(os, "SCHED_FIFO"):
            self._refused = "this system has no SCHED_FIFO"
            return
        priority = self._permitted()
        try:
            before = os.sched_getscheduler(thread), os.sched_getparam(thread)
            policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
            os.sched_setscheduler(thread, policy, os.sched_param(priority))
        except PermissionError:
            self._refused = (
                "not permitted: give the user a limit (`USER - rtprio 50` in "
                "/etc/security/limits.conf), the program the right (`setcap cap_sys_nice+ep` on "
                "the python), or the container both (`docker run --cap-add SYS_NICE --ulimit "
                "rtprio=50`)"
            )
        except ProcessLookupError:
            return
        except OSError as error:
            self._refused = f"{worker}: {in_words(error)}"
        else:
            self._before.setdefault(thread, before)
            self._granted[worker] = priority

    def _permitted(self) -> int:
        """Our priority, or as much of it as a user's limit allows."""
        if os.geteuid() == 0:
            return self._priority
        limit, _ = resource.getrlimit(resource.RLIMIT_RTPRIO)
        unlimited = limit == resource.RLIM_INFINITY or limit <= 0  # 0: a capability may still do
        return self._priority if unlimited else min(self._priority, limit)

    def undo(self, living: set[int]) -> None:
        """Put back what threads that still live had; one may end while we do."""
        for thread, (policy, parameter) in self._before.items():
            if thread in living:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(thread, policy, parameter)
        self._before = {}

    @property
    def measure(self) -> SteadyMeasure:
        """Who has it, or how it can be allowed."""
        if self._refused:
            return SteadyMeasure(name=NAME, granted=False, detail=self._refused)
        by_priority: dict[int, list[str]] = {}
        for worker, priority in self._granted.items():
            by_priority.setdefault(priority, []).append(worker)
        said = "; ".join(f"SCHED_FIFO {priority}: {', '.join(workers)}" for priority, workers in
                         by_priority.items())  # fmt: skip
        return SteadyMeasure(name=NAME, granted=bool(said), detail=said or "no worker asked for it")
