"""Pod by pod, as kube-scheduler binds them where nothing keeps a gang together.

A job's pods take GPUs one by one, in order of arrival, skipping what does not fit; pods of jobs
that were submitted at one moment take turns. A job works once all of its pods are bound, and until
then its GPUs are idle. Two jobs can so wait for each other for good; `gang_timeout_seconds` makes
them give back what they hold, the newest first, and queue up again (Kueue's waitForPodsReady).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.jobs_apart import jobs_waiting_on
from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.pool import Asked, NodePool
from ridgeline.queue.wants import wish_of

CARD = PolicyCard(
    title="pods one by one, as without a gang: a job holds GPUs while its other pods wait",
    source="Kubernetes documentation, Gang Scheduling; Kueue documentation, waitForPodsReady",
)


class PodByPod:
    """Pods that wait, and jobs of which some pods are bound."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._pieces = [self._asked(job) for job in range(len(state.size))]
        """What each pod of a job asks for."""
        ranked = sorted(
            (state.submit[job], number, job)
            for job, pieces in enumerate(self._pieces)
            for number in range(len(pieces))
        )
        self.waiting = jobs_waiting_on(
            state.pool, [(rank, self._pieces[rank[2]][rank[1]]) for rank in ranked]
        )
        self._pods: list[tuple[int, int]] = []
        """Job and attempt of every pod that ever waited."""
        self._attempt = [0] * len(state.size)
        self._missing: dict[int, int] = {}
        """Pods that are not bound, of jobs that wait."""
        self._since: dict[int, float] = {}
        """When the first pod was bound, of jobs that hold a part of their GPUs."""

    def arrive(self, job: int) -> None:
        """Let all of its pods wait."""
        self._queue_up(job, self.state.submit[job])

    def bound(self, job: int, nodes: Sequence[int]) -> None:
        """Let a job wait of which pods are on nodes already, and not all of them."""
        pool, pieces = self.state.pool, self._pieces[job]
        assert isinstance(pool, DetailedPool), "only where nodes are told apart"
        asked = [wish.pieces()[0][0] for wish in pieces[: len(nodes)]]
        held = [pool.take_at(node, piece) for node, piece in zip(nodes, asked, strict=True)]
        self._queue_up(job, self.state.submit[job], num_bound=len(nodes))
        self.state.partly[job] = held
        self._since[job] = self.state.now

    def finished(self, job: int) -> None:
        """Nothing is kept of running jobs."""

    def changed(self, job: int) -> None:
        """Nothing is kept of running jobs."""

    def schedule(self) -> None:
        """Bind pods; then let those give up whose time is over, the newest first."""
        self._bind()
        while overdue := [job for job in self._since if self._gives_up(job) <= self.state.now]:
            job = max(overdue, key=lambda one: (self.state.submit[one], one))
            self.state.pool.give(self.state.partly.pop(job))
            self._queue_up(job, self.state.now)
            self._bind()

    def next_moment(self) -> float:
        """When the next job gives up."""
        return min((self._gives_up(job) for job in self._since), default=NEVER)

    def _gives_up(self, job: int) -> float:
        timeout = self.state.cluster.gang_timeout_seconds
        return self._since[job] + timeout if timeout else NEVER

    def _queue_up(self, job: int, since: float, *, num_bound: int = 0) -> None:
        self._attempt[job] += 1
        self._since.pop(job, None)
        asked = self._pieces[job][num_bound:]
        self._missing[job] = len(asked)
        for number, one in enumerate(asked, num_bound):
            self.waiting.add(len(self._pods), one, (since, number, job))
            self._pods.append((job, self._attempt[job]))

    def _asked(self, job: int) -> list[Asked]:
        """What each pod asks for: whole nodes and the rest, or even parts where pods are told."""
        state, pool, wants = self.state, self.state.pool, self.state.wants[job]
        size = state.size[job]
        largest = pool.largest if isinstance(pool, NodePool | DetailedPool) else int(pool.gpus)
        count = min(wants.pods, math.floor(size))
        if count > 1:
            parts = [size // count + (place < size % count) for place in range(count)]
        else:
            whole, rest = divmod(size, largest)
            parts = [largest] * int(whole) + ([rest] if rest else [])
        if len(parts) == 1:
            return [state.asked[job]]
        if not isinstance(pool, DetailedPool):
            return parts
        return [
            wish_of(part, replace(wants, cpus=wants.cpus * part / size,
                                  memory_bytes=wants.memory_bytes * part / size), pool.largest)
            for part in parts
        ]  # fmt: skip

    def _bind(self) -> None:
        state = self.state
        while found := self.waiting.first_fitting():
            (first,) = found.values()
            size = first.size
            job, attempt = self._pods[self.waiting.take(first)]
            if attempt != self._attempt[job] or job not in self._missing:
                continue  # of a job that has given up since
            state.partly.setdefault(job, []).extend(state.pool.take(size))
            self._since.setdefault(job, state.now)
            self._missing[job] -= 1
            if not self._missing[job]:
                del self._missing[job], self._since[job]
                state.start_holding(job, state.partly.pop(job))


POLICY = PodByPod
