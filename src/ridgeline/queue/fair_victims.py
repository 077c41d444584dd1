"""Whom a job interrupts where what cohorts lend is shared fairly, by Kueue's rules.

Kueue's documentation, "Preemption", Fair Sharing. A queue's share is what it borrows for its
weight. From the root down, the child with the largest share gives up first that borrows or is or
has the interrupting queue, its less urgent and newest jobs first; a job goes if the interrupting
queue's share with its new job is no larger than that of the queue without the job
(LessThanOrEqualToFinalShare). Where that frees too little, also if it is less than the queue's
share with the job (LessThanInitialShare), once for each queue. Jobs of the own queue need no such
reason, nor do others where the interrupting queue's quota covers its new job. Whoever is not needed
in the end is spared, the last first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ridgeline.queue.flavors import QuotaLane
from ridgeline.queue.waiting import Rank

_ABOUT = 1e-12


class Preemptor(NamedTuple):
    """A queue, and its waiting job."""

    queue: str
    job: int


def fair_victims(
    preemptor: Preemptor,
    candidates: Mapping[str, Sequence[int]],
    lane: QuotaLane,
    *,
    order: Callable[[int], Rank],
    give: Callable[[int, int], None],
    fits: Callable[[], bool],
) -> list[int]:
    """The running jobs that must go; empty: they are not enough.

    Args:
        preemptor: Who asks.
        candidates: Running jobs that may go, by queue, in the order in which they would.
        lane: What the queues use; it is left as it was.
        order: What tells which of two jobs would go first, where their queues' shares are equal.
        give: Imagines that a job's GPUs are free (1), or not (-1).
        fits: Whether the waiting job would fit on nodes.
    """
    search = _Search(preemptor.queue, candidates, lane, order, give, fits)
    lane.add(preemptor.queue, preemptor.job, 1)  # shares count the new job
    found = search.by_final_share() or search.by_initial_share()
    needed = search.spared() if found else []
    for job, queue in search.gone:
        lane.add(queue, job, 1)
    lane.add(preemptor.queue, preemptor.job, -1)
    return needed


class _Search:
    """What is tried, and who has gone so far."""

    def __init__(
        self, queue: str, candidates: Mapping[str, Sequence[int]], lane: QuotaLane,
        order: Callable[[int], Rank], give: Callable[[int, int], None], fits: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._queue, self._lane = queue, lane
        self._order, self._give, self._fits = order, give, fits
        self._left = {queue: list(jobs) for queue, jobs in candidates.items()}
        self._retry: dict[str, list[int]] = {}
        self.gone: list[tuple[int, str]] = []

    def by_final_share(self) -> bool:
        """Take jobs while the share of their queue stays no smaller; whether that is enough.

        Whose quota covers the new job takes from those that borrow whatever the shares are.
        """
        covered = not self._lane.borrows(self._queue)
        while (queue := self._next(self._left)) is not None:
            job = self._left[queue].pop(0)
            if queue != self._queue and not covered:
                mine, _ = self._lane.tree.rival_shares(self._queue, queue)
                self._lane.add(queue, job, -1)
                _, theirs = self._lane.tree.rival_shares(self._queue, queue)
                self._lane.add(queue, job, 1)
                if mine > theirs + _ABOUT:
                    self._retry.setdefault(queue, []).append(job)
                    continue
            self._take(job, queue)
            if self._is_enough():
                return True
        return False

    def by_initial_share(self) -> bool:
        """Take one job more of each queue whose share is larger; whether that is enough."""
        while (queue := self._next(self._retry)) is not None:
            jobs = self._retry.pop(queue)
            mine, theirs = self._lane.tree.rival_shares(self._queue, queue)
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
                self._lane.add(queue, job, -1)
                self._give(job, 1)
        return [job for job, _ in self.gone]

    def _next(self, left: Mapping[str, Sequence[int]]) -> str | None:
        """The queue that gives up next; None: nobody is left who may."""
        heads = {one: self._order(jobs[0]) for one, jobs in left.items() if jobs}
        return self._lane.tree.largest_share(self._queue, heads)

    def _take(self, job: int, queue: str) -> None:
        self._lane.add(queue, job, -1)
        self._give(job, 1)
        self.gone.append((job, queue))

    def _put_back(self, job: int, queue: str) -> None:
        self._lane.add(queue, job, 1)
        self._give(job, -1)

    def _is_enough(self) -> bool:
        """Whether quota and nodes have room; the lane counts the new job already."""
        return self._lane.is_kept(self._queue) and self._fits()
