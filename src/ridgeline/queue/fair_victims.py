"""Whom a job interrupts where what cohorts lend is shared fairly, by Kueue's rules.

Kueue's documentation, "Preemption", Fair Sharing. A queue's share is what it borrows for its
weight. Of the queues that borrow, the one with the largest share gives up first, its less urgent
and newest jobs first; a job goes if the interrupting queue's share with its new job is no larger
than that of the queue without the job (LessThanOrEqualToFinalShare). Where that frees too little,
also if it is less than the queue's share with the job (LessThanInitialShare), once for each queue.
Jobs of the own queue need no such reason. Whoever is not needed in the end is spared, the last
first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ridgeline.queue.cohorts import QuotaTree

_ABOUT = 1e-12


class Preemptor(NamedTuple):
    """A queue, and how many GPUs its waiting job asks for."""

    queue: str
    gpus: float


def fair_victims(
    preemptor: Preemptor,
    candidates: Mapping[str, Sequence[int]],
    tree: QuotaTree,
    *,
    sizes: Sequence[float],
    give: Callable[[int, int], None],
    fits: Callable[[], bool],
) -> list[int]:
    """The running jobs that must go; empty: they are not enough.

    Args:
        preemptor: Who asks.
        candidates: Running jobs that may go, by queue, in the order in which they would.
        tree: What the queues use; it is left as it was.
        sizes: GPUs of all jobs.
        give: Imagines that a job's GPUs are free (1), or not (-1).
        fits: Whether the waiting job would fit on nodes.
    """
    search = _Search(preemptor, candidates, tree, sizes, give, fits)
    tree.add(preemptor.queue, preemptor.gpus)  # shares count the new job
    found = search.by_final_share() or search.by_initial_share()
    needed = search.spared() if found else []
    for job, queue in search.gone:
        tree.add(queue, sizes[job])
    tree.add(preemptor.queue, -preemptor.gpus)
    return needed


class _Search:
    """What is tried, and who has gone so far."""

    def __init__(
        self, preemptor: Preemptor, candidates: Mapping[str, Sequence[int]], tree: QuotaTree,
        sizes: Sequence[float], give: Callable[[int, int], None], fits: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._queue, self._tree, self._sizes = preemptor.queue, tree, sizes
        self._give, self._fits = give, fits
        self._left = {queue: list(jobs) for queue, jobs in candidates.items()}
        self._retry: dict[str, list[int]] = {}
        self.gone: list[tuple[int, str]] = []

    def by_final_share(self) -> bool:
        """Take jobs while the share of their queue stays no smaller; whether that is enough."""
        while queue := self._next(self._left):
            job = self._left[queue].pop(0)
            if queue == self._queue:
                self._take(job, queue)
            else:
                mine, _ = self._tree.rival_shares(self._queue, queue)
                self._tree.add(queue, -self._sizes[job])
                _, theirs = self._tree.rival_shares(self._queue, queue)
                self._tree.add(queue, self._sizes[job])
                if mine > theirs + _ABOUT:
                    self._retry.setdefault(queue, []).append(job)
                    continue
                self._take(job, queue)
            if self._is_enough():
                return True
        return False

    def by_initial_share(self) -> bool:
        """Take one job more of each queue whose share is larger; whether that is enough."""
        while queue := self._next(self._retry):
            jobs = self._retry.pop(queue)
            mine, theirs = self._tree.rival_shares(self._queue, queue)
            if mine < theirs - _ABOUT:
                self._take(jobs[0], queue)
                if self._is_enough():
                    return True
        return False

    def spared(self) -> list[int]:
        """Who must go indeed, in the order in which they were taken."""
        for job, queue in self.gone[-2::-1]:
            self._put_back(job, queue)
            if self._is_enough():
                self.gone.remove((job, queue))
            else:
                self._tree.add(queue, -self._sizes[job])
                self._give(job, 1)
        return [job for job, _ in self.gone]

    def _next(self, left: Mapping[str, Sequence[int]]) -> str:
        """The own queue while it has candidates, then the one that borrows most for its weight."""
        if left.get(self._queue):
            return self._queue
        borrowing = [one for one, jobs in left.items() if jobs and self._tree.borrows(one)]
        return max(borrowing, key=lambda one: self._tree.shares(one)[::-1], default="")

    def _take(self, job: int, queue: str) -> None:
        self._tree.add(queue, -self._sizes[job])
        self._give(job, 1)
        self.gone.append((job, queue))

    def _put_back(self, job: int, queue: str) -> None:
        self._tree.add(queue, self._sizes[job])
        self._give(job, -1)

    def _is_enough(self) -> bool:
        """Whether quota and nodes have room; the tree counts the new job already."""
        return self._tree.available(self._queue) >= -_ABOUT and self._fits()
