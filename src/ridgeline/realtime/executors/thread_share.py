"""Torch's threads divided among stages that run at one time.

Each operator of torch takes as many threads as there are cores, and OpenMP keeps a team for each
thread that calls one. Two stages on two cores so have four threads that wait for each other by
spinning: each keeps the other from what it waits for. So stages that run side by side compute with
their part of the cores.
"""

from __future__ import annotations

import os
import sys


class ThreadShare:
    """A part of the cores for each of so many stages, from `take` to `give_back`."""

    def __init__(self, num_stages: int) -> None:
        self._num_stages = num_stages
        self._before: int | None = None

    def take(self) -> str:
        """Lower the number for threads that come and for forks; before either is started.

        Returns:
            What was done, for the notes of a run; empty where torch is not loaded or computes with
            no more than its part already.
        """
        torch = sys.modules.get("torch")
        if torch is None:
            return ""
        before = int(torch.get_num_threads())
        part = max(1, _num_cores() // self._num_stages)
        if before <= part:
            return ""
        torch.set_num_threads(part)
        self._before = before
        return (
            f"each stage computes with its share of the cores: torch's threads are {part}, fewer"
            f" than the {before} that were set"
        )

    def enter_thread(self) -> None:
        """Let the calling thread, which is new, have its part too.

        OpenMP keeps the number per thread; torch sets it where the thread first asks for it
        (`at::internal::lazy_init_num_threads`), which compiled code does not.
        """
        if self._before is not None:
            sys.modules["torch"].get_num_threads()

    def give_back(self) -> None:
        """Put back what was set; nothing where nothing was taken."""
        if self._before is not None:
            sys.modules["torch"].set_num_threads(self._before)
            self._before = None


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
