"""Which cores a pipeline's workers run on, so that none is moved and none waits for another.

A worker gets cores of its own where all of them fit, counted with the threads that torch computes
with; where they do not, all share the same cores and the kernel spreads them: two stages pinned to
one core while another stands idle would be worse than no pin. Cores that the kernel keeps free of
other work (`isolcpus`) come first, then one hardware thread per physical core; core 0, where most
interrupts arrive, comes last.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ridgeline.errors import in_words
from ridgeline.records.realtime_run import SteadyMeasure

NAME = "affinity"


def threads_per_worker() -> int:
    """Threads that one call computes with: torch's, where torch is loaded."""
    torch = sys.modules.get("torch")
    return 1 if torch is None else int(torch.get_num_threads())


def cores_in_order(allowed: set[int], root: Path = Path("/")) -> list[int]:
    """The cores of `allowed`, and those isolated from other work, best first."""
    system = root / "sys/devices/system/cpu"
    isolated = _core_list(system / "isolated")
    seen: dict[frozenset[int], int] = {}
    rank: dict[int, tuple[bool, int, bool, int]] = {}
    for core in sorted(allowed | isolated):
        siblings = system / f"cpu{core}" / "topology/thread_siblings_list"
        physical = frozenset(_core_list(siblings) or {core})
        sharing = seen[physical] = seen.get(physical, 0) + 1
        rank[core] = (core not in isolated, sharing, core == 0, -core)
    return sorted(rank, key=lambda core: rank[core])


def assign_cores(workers: Sequence[str], cores: Sequence[int], threads: int) -> dict[str, set[int]]:
    """Worker → the cores it runs on; `cores` best first, `threads` that each computes with.

    >>> assign_cores(["camera", "detect"], [3, 2, 1, 0], 1)
    {'camera': {3}, 'detect': {2}}
    >>> assign_cores(["camera", "detect"], [1, 0], 2)
    {'camera': {0, 1}, 'detect': {0, 1}}
    """
    if len(workers) * threads > len(cores):
        return {worker: set(cores) for worker in workers}
    return {
        worker: set(cores[index * threads : (index + 1) * threads])
        for index, worker in enumerate(workers)
    }


class CoreAffinity:
    """Pins each worker as it enters, and knows what each was before."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._given: Mapping[str, set[int]] = {}
        self._allowed: set[int] = set()
        self._threads = 1
        self._before: dict[int, set[int]] = {}
        self._pinned: dict[str, set[int]] = {}
        self._refused: dict[str, str] = {}

    def plan(self, workers: Sequence[str]) -> None:
        """Divide the cores before any worker is pinned."""
        if not hasattr(os, "sched_setaffinity"):
            self._refused[""] = "this system cannot bind a thread to cores"
            return
        self._allowed = os.sched_getaffinity(0)
        self._threads = threads_per_worker()
        self._given = assign_cores(
            workers, cores_in_order(self._allowed, self._root), self._threads
        )

    def enter(self, worker: str, thread: int) -> None:
        """Pin the thread of a worker; one that was not planned for stays where it is."""
        cores = self._given.get(worker)
        if cores is None or cores == self._allowed:
            return
        try:
            self._pin(thread, cores)
        except OSError as error:
            self._refused[worker] = f"{_ranges(cores)}: {in_words(error)}"
        else:
            self._pinned[worker] = cores

    def enter_pool(self, worker: str, thread: int) -> None:
        """Put a thread that computes for a pinned worker beside it; it may have ended."""
        if worker in self._pinned:
            with contextlib.suppress(ProcessLookupError):
                self._pin(thread, self._pinned[worker])

    def _pin(self, thread: int, cores: set[int]) -> None:
        before = os.sched_getaffinity(thread)
        os.sched_setaffinity(thread, cores)
        self._before.setdefault(thread, before)

    def undo(self, living: set[int]) -> None:
        """Put back what threads that still live had; one may end while we do."""
        for thread, cores in self._before.items():
            if thread in living:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, cores)
        self._before = {}

    @property
    def measure(self) -> SteadyMeasure:
        """Who runs where, or why not."""
        if self._refused:
            said = "; ".join(f"{worker}: {why}".removeprefix(": ") for worker, why in
                             self._refused.items())  # fmt: skip
            return SteadyMeasure(name=NAME, granted=False, detail=said)
        if self._pinned:
            said = ", ".join(f"{worker} on {_ranges(cores)}" for worker, cores in
                             self._pinned.items())  # fmt: skip
            return SteadyMeasure(name=NAME, granted=True, detail=said)
        if len(self._given) == 1:
            said = f"{', '.join(self._given)} computes on all of its {len(self._allowed)} cores"
            return SteadyMeasure(name=NAME, granted=True, detail=said)
        return SteadyMeasure(
            name=NAME,
            granted=False,
            detail=f"{len(self._given)} workers of {self._threads} threads each share the "
            f"{len(self._allowed)} cores there are, so none is pinned; OMP_NUM_THREADS=1, fewer "
            "workers or more cores would give each its own",
        )


def _core_list(path: Path) -> set[int]:
    """The cores of a list as the kernel writes it: `0-3,8`."""
    try:
        text = path.read_text().strip()
    except OSError:
        return set()
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _ranges(cores: set[int]) -> str:
    """Cores as people write them.

    >>> _ranges({1}), _ranges({0, 2})
    ('core 1', 'cores 0, 2')
    """
    listed = ", ".join(map(str, sorted(cores)))
    return f"core{'s' if len(cores) > 1 else ''} {listed}"
