"""Quotas with borrowing, lending and reclaim, by the rules of Kueue's cluster queues.

Each queue offers its first job by priority and arrival (BestEffortFIFO: the first that can be
admitted). Of the offers those go first that borrow nothing, then the more urgent, then the older.
A job that does not fit may interrupt: less urgent jobs of its own queue (`within_queue`), and, if
its queue's quota covers it, jobs of queues that borrow (`reclaim_within_cohort`), as long as they
borrow. Those of other queues go first, then the less urgent, then the newest; whom it does not
need is spared. Where there are flavors, a job takes the first of its queue's that has room for it
by quota and nodes; whether one that is to be borrowed, or that others must be interrupted for, is
taken before the next is tried, the queue says (FlavorFungibility). With `fair_sharing` the offer
goes first whose queue would borrow least of all flavors for its weight, and jobs of other queues
are interrupted as `fair_victims.py` says. Source: Kueue's documentation, "Cluster Queue" and
"Preemption". A job is admitted only where nodes have room for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ridgeline.errors import InputError
from ridgeline.queue.fair_victims import Preemptor, fair_victims
from ridgeline.queue.flavors import QuotaLane, lanes_of
from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.offers import offers_on
from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.pool import Asked, ImaginedRoom
from ridgeline.queue.shares import QueueShare
from ridgeline.queue.waiting import Rank, WaitingJob

CARD = PolicyCard(
    title="quotas in cohorts; idle GPUs are lent, and taken back from the newest borrowers",
    interrupts=True,
    source="Kueue documentation, Cluster Queue and Preemption",
)


class _Bid(NamedTuple):
    """A job that a queue offers for GPUs of one flavor."""

    queue: str
    job: int
    lane: QuotaLane
    asked: Asked
    """What it asks of the nodes of that flavor."""


class QuotasWithBorrowing:
    """Waiting jobs by queue, and who runs in each."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.running: dict[str, dict[int, None]] = {name: {} for name in state.queue}
        cluster = state.cluster
        self._fair = cluster.fair_sharing
        taken = {
            "gpus": state.size,
            "cores": [one.cpus for one in state.wants],
            "memory_gibibytes": [one.memory_bytes / 2**30 for one in state.wants],
        }
        self._lanes = lanes_of(cluster, self.running, state.pool.gpus, taken)
        self._lane_of: dict[int, QuotaLane] = {}
        """Of running jobs."""
        self._ways_of: dict[int, list[tuple[QuotaLane, Asked]]] = {}
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
            short = [lane.too_much(name, job) for lane, _ in self._ways(name, job)]
            if all(short):
                why = max(short, default="GPUs of no flavor that it has")
                raise InputError(
                    f"job {job + 1} of queue {name} asks for {why}; raise quota or"
                    " borrowing_limit, or leave the job out"
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
            assigned = self._assigned(offered)
            if assigned is not None:
                bid, victims = assigned
                if victims:
                    self._evict(victims)
                self._start(offered, bid)
                return True
            self._in_vain.add(offered.job)
        return False

    def _assigned(self, offered: WaitingJob) -> tuple[_Bid, list[int]] | None:
        """The flavor that a job gets, and whom it interrupts for that; None: it cannot start."""
        job, name, share = offered.job, offered.queue, self.share[offered.queue]
        held_back = job in self._in_vain or (self._fair and job in self._evicted)
        best: tuple[tuple[bool, bool], _Bid, list[int]] | None = None
        for lane, asked in self._ways(name, job):
            bid = _Bid(name, job, lane, asked)
            victims: list[int] = []
            fits = lane.has_left(name, job) and self._has_room(offered, bid)
            if not fits and not held_back:
                victims = self._victims(bid)
            if not fits and not victims:
                continue
            borrows = not self._is_covered(bid)
            if best is None or (fits, not borrows) > best[0]:
                best = ((fits, not borrows), bid, victims)
            try_next = (not fits and share.when_can_preempt == "try-next-flavor") or (
                borrows and share.when_can_borrow == "try-next-flavor"
            )
            if not try_next:
                break
        return None if best is None else best[1:]

    def _has_room(self, offered: WaitingJob, bid: _Bid) -> bool:
        if bid.asked is offered.size:
            return self.waiting.fits(offered.size)
        return self.state.pool.fits(bid.asked)

    def _ways(self, name: str, job: int) -> list[tuple[QuotaLane, Asked]]:
        """The flavors that a job may have, in the order of its queue, and what it asks of each."""
        if job not in self._ways_of:
            flavors = [one.name for one in self.share[name].flavors]
            lanes = [self._lanes[one] for one in (flavors if self.state.cluster.flavors else [""])]
            within = [(lane, lane.asked(self.state.asked[job])) for lane in lanes]
            self._ways_of[job] = [(lane, one) for lane, one in within if one is not None]
        return self._ways_of[job]

    def _offers(self) -> list[tuple[list[float], Rank, WaitingJob]]:
        """The heads of all queues that may be admitted: how much one borrows, its rank, itself.

        Without fair sharing it counts whether it borrows, and not how much.
        """
        return [(self._borrowing(one), one.rank, one) for one in self.waiting.heads(self._in_vain)]

    def _borrowing(self, offered: WaitingJob) -> list[float]:
        name, job = offered.queue, offered.job
        lanes = [lane for lane, _ in self._ways(name, job)]
        if not self._fair:
            return [float(not any(one.covers(name, job) for one in lanes))]
        # As Kueue reckons with the flavor that it would assign: the first that has quota left.
        lane = next((one for one in lanes if one.has_left(name, job)), lanes[0])
        lane.add(name, job, 1)
        found = lane.tree.shares(name)[::-1]  # the cohorts at the top compete first
        lane.add(name, job, -1)
        return found

    def _is_covered(self, bid: _Bid) -> bool:
        """Whether its queue's own quota is enough for a job."""
        return bid.lane.covers(bid.queue, bid.job)

    def _start(self, offered: WaitingJob, bid: _Bid) -> None:
        self.waiting.take(offered)
        self.state.start_holding(offered.job, self.state.pool.take(bid.asked))
        self.running[offered.queue][offered.job] = None
        self._lane_of[offered.job] = bid.lane
        bid.lane.add(offered.queue, offered.job, 1)
        if self._fair:  # whoever borrows more now is nearer to giving up
            self._in_vain.clear()

    def _leave(self, job: int) -> None:
        name = self.state.queue[job]
        self._lane_of.pop(job).add(name, job, -1)
        del self.running[name][job]

    def _evict(self, victims: list[int]) -> None:
        self._evicted.update(victims)
        for job in victims:
            self._leave(job)
            self.state.interrupt(job)
            self.arrive(job)
        self._in_vain.clear()

    def _victims(self, bid: _Bid) -> list[int]:
        """Whom to interrupt so that a job can start; empty: that cannot be done."""
        share, own = self.share[bid.queue], self._own_candidates(bid)
        if self._fair:
            return self._fair_victims(bid, own)
        covered = self._is_covered(bid)
        if covered or share.borrow_within_cohort:
            lower_alone = not covered or share.reclaim_within_cohort == "lower-priority"
            others = self._borrowers(bid, lower_alone=lower_alone)
            if not covered or share.reclaim_within_cohort != "never":
                found = self._enough(bid, [*others, *own], borrowing=not covered)
                if found:
                    return found
        return self._enough(bid, own, borrowing=True)

    def _fair_victims(self, bid: _Bid, own: list[int]) -> list[int]:
        state, rule = self.state, self.share[bid.queue].reclaim_within_cohort
        others = [] if rule == "never" else self._borrowers(
            bid, lower_alone=rule == "lower-priority"
        )  # fmt: skip
        by_queue: dict[str, list[int]] = {bid.queue: own} if own else {}
        for other in others:
            by_queue.setdefault(state.queue[other], []).append(other)
        room = state.pool.imagined()
        return fair_victims(
            Preemptor(bid.queue, bid.job), by_queue, bid.lane,
            order=lambda one: (state.queue[one] == bid.queue, *self._rank_to_go(one)),
            give=lambda one, sign: room.change(state.held[one], sign),
            fits=lambda: room.fits(bid.asked),
        )  # fmt: skip

    def _own_candidates(self, bid: _Bid) -> list[int]:
        name, job = bid.queue, bid.job
        rule, state = self.share[name].within_queue, self.state
        if rule == "never":
            return []
        newer = rule == "lower-or-newer-equal-priority"
        return self._in_order(
            other for other in self.running[name]
            if self._lane_of[other] is bid.lane
            and (state.priority[other] < state.priority[job]
            or (newer and state.priority[other] == state.priority[job]
                and state.submit[other] > state.submit[job]))
        )  # fmt: skip

    def _borrowers(self, bid: _Bid, *, lower_alone: bool) -> list[int]:
        state, lane = self.state, bid.lane
        root = lane.tree.root_of(bid.queue)
        return self._in_order(
            other
            for queue, jobs in self.running.items()
            if queue != bid.queue and lane.borrows(queue) and lane.tree.root_of(queue) == root
            for other in jobs
            if self._lane_of[other] is bid.lane
            and (not lower_alone or state.priority[other] < state.priority[bid.job])
        )

    def _in_order(self, jobs: Iterable[int]) -> list[int]:
        """The less urgent first, then the newest."""
        return sorted(jobs, key=self._rank_to_go)

    def _rank_to_go(self, job: int) -> Rank:
        return (self.state.priority[job], -self.state.started_at[job], -job)

    def _enough(self, bid: _Bid, candidates: list[int], *, borrowing: bool) -> list[int]:
        """The candidates that are needed, in their order; empty: all of them are not enough."""
        state, room, lane = self.state, self.state.pool.imagined(), bid.lane
        gone: list[int] = []
        for other in candidates:
            queue = state.queue[other]
            if queue != bid.queue and not lane.borrows(queue):
                continue
            lane.add(queue, other, -1)
            room.change(state.held[other], 1)
            gone.append(other)
            if self._would_fit(bid, room, borrowing=borrowing):
                break
        enough = bool(gone) and self._would_fit(bid, room, borrowing=borrowing)
        needed = gone.copy() if enough else []
        for other in reversed(gone):
            lane.add(state.queue[other], other, 1)
            if enough:
                room.change(state.held[other], -1)
                if self._would_fit(bid, room, borrowing=borrowing):
                    needed.remove(other)
                else:
                    lane.add(state.queue[other], other, -1)
                    room.change(state.held[other], 1)
        for other in needed:
            lane.add(state.queue[other], other, 1)
        return needed

    def _would_fit(self, bid: _Bid, room: ImaginedRoom, *, borrowing: bool) -> bool:
        if not borrowing and not self._is_covered(bid):
            return False
        return bid.lane.has_left(bid.queue, bid.job) and room.fits(bid.asked)


POLICY = QuotasWithBorrowing
