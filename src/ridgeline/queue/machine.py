"""The state that a policy acts on: who runs, who has finished, what an interruption costs."""

from __future__ import annotations

import heapq
import math

from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.pool import Held

NEVER = math.inf


class ClusterState:
    """Jobs on GPUs at one moment. Jobs are numbers: their place in `Jobs`."""

    def __init__(self, jobs: Jobs, cluster: QueuedCluster) -> None:
        count = len(jobs)
        self.cluster = cluster
        self.pool = cluster.pool()
        self.now = 0.0
        self.size: list[int] = jobs.num_gpus.tolist()
        self.duration: list[float] = jobs.duration_seconds.tolist()
        self.submit: list[float] = jobs.submit_seconds.tolist()
        self.priority: list[int] = jobs.priority.tolist()
        self.queue = jobs.queues
        self.remaining: list[float] = self.duration.copy()
        """Work left when a job was last started or interrupted, in seconds."""
        self.held: dict[int, Held] = {}
        """Who runs, and where."""
        self.started_at = [NEVER] * count
        """When a running job was last started; what it does begins `delay` later."""
        self.delay = [0.0] * count
        self.first_start = [NEVER] * count
        self.end = [NEVER] * count
        self.ends_at: list[float] = [NEVER] * count
        self.interruptions = [0] * count
        self.lost_seconds = [0.0] * count
        """Time on GPUs that led nowhere: work done twice, and starting again."""
        self._ends: list[tuple[float, int, int]] = []
        self._version = [0] * count

    def left(self, job: int) -> float:
        """Work that a job has left now, in seconds."""
        if job not in self.held:
            return self.remaining[job]
        return self.remaining[job] - self._done_since_start(job)

    def attained(self, job: int) -> float:
        """Work that a job has done and not lost, in GPU-seconds."""
        return (self.duration[job] - self.left(job)) * self.size[job]

    def start(self, job: int) -> None:
        """Give a waiting job that fits its GPUs."""
        self.held[job] = self.pool.take(self.size[job])
        again = self.interruptions[job] > 0
        self.delay[job] = self.cluster.restart_seconds if again else 0.0
        self.started_at[job] = self.now
        self.first_start[job] = min(self.first_start[job], self.now)
        self.ends_at[job] = self.now + self.delay[job] + self.remaining[job]
        self._version[job] += 1
        heapq.heappush(self._ends, (self.ends_at[job], job, self._version[job]))

    def interrupt(self, job: int) -> None:
        """Take a running job's GPUs; it falls back to its last checkpoint."""
        done = self._done_since_start(job)
        total = self.duration[job] - self.remaining[job] + done
        kept = self._saved(total)
        lost = min(total - kept, done)
        self.lost_seconds[job] += lost + min(self.delay[job], self.now - self.started_at[job])
        self.remaining[job] -= done - lost
        self.interruptions[job] += 1
        self._version[job] += 1
        self.pool.give(self.held.pop(job))

    def next_end(self) -> float:
        """When the next running job ends."""
        while self._ends and self._stale(self._ends[0]):
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else NEVER

    def finish_due(self) -> list[int]:
        """End all jobs whose time has come, in the order of their numbers."""
        due: list[int] = []
        while self.next_end() <= self.now:
            due.append(heapq.heappop(self._ends)[1])
        due.sort()
        for job in due:
            self.end[job] = self.ends_at[job]
            self.remaining[job] = 0.0
            self.lost_seconds[job] += self.delay[job]
            self.pool.give(self.held.pop(job))
        return due

    def _done_since_start(self, job: int) -> float:
        return max(0.0, self.now - self.started_at[job] - self.delay[job])

    def _saved(self, total: float) -> float:
        every = self.cluster.checkpoint_seconds
        return float(math.floor(total / every) * every) if every else total

    def _stale(self, end: tuple[float, int, int]) -> bool:
        _, job, version = end
        return self._version[job] != version or job not in self.held
