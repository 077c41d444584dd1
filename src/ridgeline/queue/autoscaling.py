"""Nodes that come when jobs wait and go when they are idle: what that saves, and what it costs.

The rule is that of node autoscalers on Kubernetes (Cluster Autoscaler, Karpenter): as many nodes
are asked for as the waiting jobs fill beside those that are on their way; when nobody waits, a node
that has been empty for the idle time goes, down to a least number. Jobs start first come, first
served, and those that fit pass those that do not; a job gets its GPUs on the fullest node that has
room, a larger one whole nodes and the rest on one more. A node is paid for from the moment at which
it is asked for.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.jobs import Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScaling:
    """One setting of the autoscaler."""

    gpus_per_node: int
    min_nodes: int
    max_nodes: int
    delay_seconds: float
    """From asking for a node until it takes jobs."""
    idle_seconds: float
    """How long a node stays empty before it goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRun:
    """What became of a trace; arrays have one entry per job, or per moment."""

    start_seconds: NDArray[np.float64]
    end_seconds: NDArray[np.float64]
    node_seconds: float
    """What is paid for: from asking for a node until it goes, to the end of the last job."""
    most_nodes: int
    moments: NDArray[np.float64]
    nodes: NDArray[np.int64]
    """Nodes that are paid for, from each moment on."""
    busy_gpus: NDArray[np.int64]


class _Nodes:
    """The nodes that are there, those on their way, and the jobs on them."""

    def __init__(self, scaling: NodeScaling) -> None:
        self.scaling = scaling
        self.free: dict[int, int] = dict.fromkeys(range(scaling.min_nodes), scaling.gpus_per_node)
        self.idle_since: dict[int, float] = dict.fromkeys(self.free, 0.0)
        self.coming: deque[float] = deque()
        self._numbers = itertools.count(scaling.min_nodes)

    @property
    def paid(self) -> int:
        return len(self.free) + len(self.coming)

    def take(self, gpus: int) -> list[tuple[int, int]] | None:
        """GPUs for a job; None: they are not there."""
        size = self.scaling.gpus_per_node
        whole, rest = divmod(gpus, size)
        empty = [node for node, free in self.free.items() if free == size]
        if len(empty) < whole:
            return None
        held = [(node, size) for node in empty[:whole]]
        if rest:
            used = set(empty[:whole])
            fitting = [(free, node) for node, free in self.free.items()
                       if free >= rest and node not in used]  # fmt: skip
            if not fitting:
                return None
            held.append((min(fitting)[1], rest))
        for node, count in held:
            self.free[node] -= count
            self.idle_since.pop(node, None)
        return held

    def give(self, held: Iterable[tuple[int, int]], now: float) -> None:
        for node, count in held:
            self.free[node] += count
            if self.free[node] == self.scaling.gpus_per_node:
                self.idle_since[node] = now

    def arrive(self, now: float) -> None:
        while self.coming and self.coming[0] <= now:
            self.coming.popleft()
            node = next(self._numbers)
            self.free[node] = self.scaling.gpus_per_node
            self.idle_since[node] = now

    def leave(self, now: float) -> None:
        for node, since in list(self.idle_since.items()):
            if len(self.free) > self.scaling.min_nodes and now >= since + self.scaling.idle_seconds:
                del self.free[node], self.idle_since[node]

    def ask(self, waiting_gpus: Iterable[int], now: float) -> None:
        """Ask for nodes that hold what waits, beside what is on its way."""
        size = self.scaling.gpus_per_node
        # Who waits did not fit what is there: empty nodes are for jobs of several nodes.
        spare = len(self.idle_since) + len(self.coming)
        wanted, shared = 0, 0
        for gpus in waiting_gpus:
            whole, rest = divmod(gpus, size)
            wanted, shared = wanted + whole, shared + rest
        wanted += math.ceil(shared / size)
        for _ in range(min(wanted - spare, self.scaling.max_nodes - self.paid)):
            self.coming.append(now + self.scaling.delay_seconds)

    def next_moment(self, *, waited_for: bool) -> float:
        moments = [self.coming[0]] if self.coming else []
        if not waited_for and len(self.free) > self.scaling.min_nodes and self.idle_since:
            moments.append(min(self.idle_since.values()) + self.scaling.idle_seconds)
        return min(moments, default=math.inf)


class _Waiting:
    """Jobs in order of arrival, by size."""

    def __init__(self) -> None:
        self._by_size: dict[int, deque[int]] = {}

    def add(self, job: int, gpus: int) -> None:
        self._by_size.setdefault(gpus, deque()).append(job)

    def start(self, take: Callable[[int, int], bool]) -> None:
        """Start jobs in order of arrival until none fits; who does not fit is passed."""
        closed: set[int] = set()
        while True:
            heads = [(jobs[0], size) for size, jobs in self._by_size.items()
                     if jobs and size not in closed]  # fmt: skip
            if not heads:
                return
            job, size = min(heads)
            if take(job, size):
                self._by_size[size].popleft()
            else:
                closed.add(size)

    def any(self) -> bool:
        return any(self._by_size.values())

    def gpus(self) -> Iterator[int]:
        for size, jobs in self._by_size.items():
            yield from itertools.repeat(size, len(jobs))


def play_scaled(jobs: Jobs, scaling: NodeScaling) -> ScaledRun:
    """Play a trace; every job fits `max_nodes` empty nodes."""
    nodes, waiting = _Nodes(scaling), _Waiting()
    submit, sizes = jobs.submit_seconds.tolist(), [int(one) for one in jobs.num_gpus]
    duration = jobs.duration_seconds.tolist()
    start, end = [math.inf] * len(jobs), [math.inf] * len(jobs)
    ends: list[tuple[float, int]] = []
    held: dict[int, list[tuple[int, int]]] = {}
    now, arrived, most, busy = 0.0, 0, nodes.paid, 0
    moments: list[float] = []
    paid: list[int] = []
    used: list[int] = []

    def begin(job: int, gpus: int) -> bool:
        nonlocal busy
        taken = nodes.take(gpus)
        if taken is None:
            return False
        held[job], start[job], end[job] = taken, now, now + duration[job]
        busy += gpus
        heapq.heappush(ends, (end[job], job))
        return True

    while arrived < len(jobs) or ends or waiting.any():
        submitted = submit[arrived] if arrived < len(jobs) else math.inf
        now = max(
            now,
            min(
                submitted,
                ends[0][0] if ends else math.inf,
                nodes.next_moment(waited_for=waiting.any()),
            ),
        )
        while ends and ends[0][0] <= now:
            job = heapq.heappop(ends)[1]
            nodes.give(held.pop(job), now)
            busy -= sizes[job]
        nodes.arrive(now)
        while arrived < len(jobs) and submit[arrived] <= now:
            waiting.add(arrived, sizes[arrived])
            arrived += 1
        waiting.start(begin)
        if not waiting.any():
            nodes.leave(now)
        nodes.ask(waiting.gpus(), now)
        most = max(most, nodes.paid)
        moments.append(now)
        paid.append(nodes.paid)
        used.append(busy)
    return ScaledRun(
        start_seconds=np.array(start),
        end_seconds=np.array(end),
        node_seconds=float(np.dot(paid[:-1], np.diff(moments))) + paid[0] * moments[0],
        most_nodes=most,
        moments=np.array(moments),
        nodes=np.array(paid),
        busy_gpus=np.array(used),
    )
