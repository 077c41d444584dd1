"""Quotas with borrowing, lending and reclaim, by the rules of Kueue's cluster queues.

Each queue offers its first job by priority and arrival (BestEffortFIFO: the first that can be
admitted). Of the offers those go first that borrow nothing, then the more urgent, then the older.
A job that does not fit may interrupt: less urgent jobs of its own queue (`within_queue`), and, if
its queue's quota covers it, jobs of queues that borrow (`reclaim_within_cohort`), as long as they
borrow. Those of other queues go first, then the less urgent, then the newest; whom it does not
need is spared. With `fair_sharing` the offer goes first whose queue would borrow least for its
weight, and jobs of other queues are interrupted as `fair_victims.py` says. Source: Kueue's
documentation, "Cluster Queue" and "Preemption". Flavors are not modelled, and a job is admitted
only where nodes have room for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.errors import InputError
from ridgeline.queue.cohorts import QuotaTree
from ridgeline.queue.fair_victims import Preemptor, fair_victims
from ridgeline.queue.first_fitting import WaitingJob
from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.offers import offers_on
from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.pool import ImaginedRoom
from ridgeline.queue.shares import QueueShare
from ridgeline.queue.waiting import Rank

CARD = PolicyCard(
    title="quotas in cohorts; idle GPUs are lent, and taken back from the newest borrowers",
    interrupts=True,
    source="Kueue documentation, Cluster Queue and Preemption",
)


class QuotasWithBorrowing:
    """Waiting jobs by queue, and who runs in each."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.running: dict[str, dict[int, None]] = {name: {} for name in state.queue}
        cluster = state.cluster
        self._fair = cluster.fair_sharing
        self.tree = QuotaTree(self.running, cluster.queues, cluster.cohorts, state.pool.gpus)
        self.share = {name: cluster.queues.get(name, QueueShare()) for name in self.running}
        self.waiting = offers_on(
            state.pool,
            state.asked,
            {name for name, one in self.share.items() if one.strategy == "strict-fifo"},
            [
                name
                for name, one in self.share.items()
                if one.interrupts or (self._fair and one.reclaim_within_cohort != "never")
            ],
        )
        self._in_vain: set[int] = set()
        """Jobs that found nobody to interrupt since anything ended or was submitted."""
        self._evicted: set[int] = set()
        """Jobs that were interrupted at this moment: queues whose policies differ could else take
        the same GPUs from each other for good."""
        self._gpus = state.pool.gpus
        for job, name in enumerate(state.queue):
            if state.size[job] > self.tree.most(name) + 1e-9:
                raise InputError(
                    f"job {job + 1} of queue {name} asks for {state.size[job]:g} GPUs, and its"
                    f" quota with all that it may borrow is {self.tree.most(name):g}; raise"
                    " quota or borrowing_limit, or leave the job out"
                )

    def arrive(self, job: int) -> None:
        """Let a job wait in its queue."""
        state = self.state
        rank = (-state.priority[job], state.submit[job])
        self.waiting.add(job, state.asked[job], rank, state.queue[job])

    def finished(self, job: int) -> None:
        """Its queue has so many GPUs less."""
        self._leave(job)
        self._in_vain.clear()

    def changed(self, job: int) -> None:
        """Do nothing with a job whose end has moved, since no ends are kept."""
        del job

    def schedule(self) -> None:
        """Admit one offer after the other, until none can be admitted."""
        if self._gpus != self.state.pool.gpus:  # a node failed, or came back
            self._gpus = self.state.pool.gpus
            self._in_vain.clear()
        self._evicted.clear()
        while self._admit_one():
            pass

    def next_moment(self) -> float:
        """Nothing is due by time alone."""
        return NEVER

    def _admit_one(self) -> bool:
        for _, _, offered in sorted(self._offers(), key=lambda one: one[:2]):
            job, name = offered.job, offered.queue
            available = self.tree.available(name) >= self.state.size[job]
            if available and self.waiting.fits(offered.size):
                self._start(offered)
                return True
            if job in self._in_vain or (self._fair and job in self._evicted):
                continue
            victims = self._victims(name, job)
            if victims:
                self._evict(victims)
                self._start(offered)
                return True
            self._in_vain.add(job)
        return False

    def _offers(self) -> list[tuple[list[float], Rank, WaitingJob]]:
        """The heads of all queues that may be admitted: how much one borrows, its rank, itself.

        Without fair sharing it counts whether it borrows, and not how much.
        """
        return [
            (self._borrowing(one.queue, one.job), one.rank, one)
            for one in self.waiting.heads(self._in_vain)
        ]

    def _borrowing(self, name: str, job: int) -> list[float]:
        tree, size = self.tree, self.state.size[job]
        if not self._fair:
            return [float(tree.used(name) + size > tree.quota(name))]
        tree.add(name, size)
        found = tree.shares(name)[::-1]  # the cohorts at the top compete first
        tree.add(name, -size)
        return found

    def _start(self, offered: WaitingJob) -> None:
        self.waiting.take(offered)
        self.state.start(offered.job)
        self.running[offered.queue][offered.job] = None
        self.tree.add(offered.queue, self.state.size[offered.job])
        if self._fair:  # whoever borrows more now is nearer to giving up
            self._in_vain.clear()

    def _leave(self, job: int) -> None:
        name = self.state.queue[job]
        self.tree.add(name, -self.state.size[job])
        del self.running[name][job]

    def _evict(self, victims: list[int]) -> None:
        self._evicted.update(victims)
        for job in victims:
            self._leave(job)
            self.state.interrupt(job)
            self.arrive(job)
        self._in_vain.clear()

    def _victims(self, name: str, job: int) -> list[int]:
        """Whom to interrupt so that a job can start; empty: that cannot be done."""
        own = self._own_candidates(name, job)
        if self._fair:
            return self._fair_victims(name, job, own)
        covered = self.tree.used(name) + self.state.size[job] <= self.tree.quota(name)
        if covered or self.share[name].borrow_within_cohort:
            lower_alone = not covered or self.share[name].reclaim_within_cohort == "lower-priority"
            others = self._borrowers(name, job, lower_alone=lower_alone)
            if not covered or self.share[name].reclaim_within_cohort != "never":
                found = self._enough(name, job, [*others, *own], borrowing=not covered)
                if found:
                    return found
        return self._enough(name, job, own, borrowing=True)

    def _fair_victims(self, name: str, job: int, own: list[int]) -> list[int]:
        state, rule = self.state, self.share[name].reclaim_within_cohort
        others = [] if rule == "never" else self._borrowers(
            name, job, lower_alone=rule == "lower-priority"
        )  # fmt: skip
        by_queue: dict[str, list[int]] = {name: own} if own else {}
        for other in others:
            by_queue.setdefault(state.queue[other], []).append(other)
        room = state.pool.imagined()
        return fair_victims(
            Preemptor(name, state.size[job]), by_queue, self.tree, sizes=state.size,
            order=lambda one: (state.queue[one] == name, *self._rank_to_go(one)),
            give=lambda one, sign: room.change(state.held[one], sign),
            fits=lambda: room.fits(state.asked[job]),
        )  # fmt: skip

    def _own_candidates(self, name: str, job: int) -> list[int]:
        rule, state = self.share[name].within_queue, self.state
        if rule == "never":
            return []
        newer = rule == "lower-or-newer-equal-priority"
        return self._in_order(
            other for other in self.running[name]
            if state.priority[other] < state.priority[job]
            or (newer and state.priority[other] == state.priority[job]
                and state.submit[other] > state.submit[job])
        )  # fmt: skip

    def _borrowers(self, name: str, job: int, *, lower_alone: bool) -> list[int]:
        state, root = self.state, self.tree.root_of(name)
        return self._in_order(
            other
            for queue, jobs in self.running.items()
            if queue != name and self.tree.borrows(queue) and self.tree.root_of(queue) == root
            for other in jobs
            if not lower_alone or state.priority[other] < state.priority[job]
        )

    def _in_order(self, jobs: Iterable[int]) -> list[int]:
        """The less urgent first, then the newest."""
        return sorted(jobs, key=self._rank_to_go)

    def _rank_to_go(self, job: int) -> Rank:
        return (self.state.priority[job], -self.state.started_at[job], -job)

    def _enough(self, name: str, job: int, candidates: list[int], *, borrowing: bool) -> list[int]:
        """The candidates that are needed, in their order; empty: all of them are not enough."""
        state, room = self.state, self.state.pool.imagined()
        gone: list[int] = []
        for other in candidates:
            queue = state.queue[other]
            if queue != name and not self.tree.borrows(queue):
                continue
            self.tree.add(queue, -state.size[other])
            room.change(state.held[other], 1)
            gone.append(other)
            if self._would_fit(name, job, room, borrowing=borrowing):
                break
        enough = bool(gone) and self._would_fit(name, job, room, borrowing=borrowing)
        needed = gone.copy() if enough else []
        for other in reversed(gone):
            self.tree.add(state.queue[other], state.size[other])
            if enough:
                room.change(state.held[other], -1)
                if self._would_fit(name, job, room, borrowing=borrowing):
                    needed.remove(other)
                else:
                    self.tree.add(state.queue[other], -state.size[other])
                    room.change(state.held[other], 1)
        for other in needed:
            self.tree.add(state.queue[other], state.size[other])
        return needed

    def _would_fit(self, name: str, job: int, room: ImaginedRoom, *, borrowing: bool) -> bool:
        size = self.state.size[job]
        if not borrowing and self.tree.used(name) + size > self.tree.quota(name):
            return False
        return self.tree.available(name) >= size and room.fits(self.state.asked[job])


POLICY = QuotasWithBorrowing
