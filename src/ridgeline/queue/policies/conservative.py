"""Conservative backfill, in which every job gets a start on arrival, and nobody ever delays it.

Mu'alem and Feitelson, IEEE TPDS 2001, section 2. Durations are known here, so reservations hold as
they were made; a job that is slowed by others leaves what was promised to them as it was. They are
made on the number of free GPUs; on nodes, a job whose GPUs lie scattered at its start waits for the
next moment at which it fits.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right

import numpy as np

from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import PolicyCard

CARD = PolicyCard(
    title="every job gets a start that no later one delays", source="Mu'alem and Feitelson 2001"
)


class ConservativeBackfill:
    """Free GPUs over the time to come, as steps, and the starts that were promised."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._times: list[float] = [0.0]
        self._free: list[float] = [state.pool.gpus]
        self._starts: list[tuple[float, int]] = []
        self._late: list[int] = []

    def arrive(self, job: int) -> None:
        """Reserve the earliest stretch of time in which enough GPUs are free."""
        state = self.state
        again = state.cluster.restart_seconds if state.interruptions[job] else 0.0
        length = max(state.remaining[job] + again, 1e-9)
        start = self._earliest(state.size[job], length)
        self._reserve(start, start + length, state.size[job])
        heapq.heappush(self._starts, (start, job))

    def finished(self, job: int) -> None:
        """A job that lost its node gives the rest of its reservation back."""
        state = self.state
        if state.end[job] == NEVER:
            self._reserve(state.now, max(state.now, state.ends_at[job]), -state.size[job])

    def changed(self, job: int) -> None:
        """Leave its reservation as it was made."""

    def schedule(self) -> None:
        """Start those whose time has come."""
        state = self.state
        while self._starts and self._starts[0][0] <= state.now:
            self._late.append(heapq.heappop(self._starts)[1])
        scattered = []
        for job in self._late:
            if state.pool.fits(state.asked[job]):
                state.start(job)
            else:
                scattered.append(job)
        self._late = scattered

    def next_moment(self) -> float:
        """The next promised start."""
        return self._starts[0][0] if self._starts else NEVER

    def _earliest(self, size: float, length: float) -> float:
        """The first moment from which `size` GPUs stay free for `length` seconds."""
        self._forget()
        times = np.array([*self._times, NEVER])
        free = np.array(self._free)
        # Runs of steps with enough free GPUs: a run must be as long as the job.
        enough = np.concatenate([[False], free >= size, [False]]).astype(np.int8)
        edges = np.diff(enough)
        begins = np.maximum(times[np.flatnonzero(edges == 1)], self.state.now)
        ends = times[np.flatnonzero(edges == -1)]
        return float(begins[int(np.argmax(ends - begins >= length))])

    def _reserve(self, start: float, end: float, size: float) -> None:
        first, last = self._step(start), self._step(end)
        for place in range(first, last):
            self._free[place] -= size

    def _step(self, moment: float) -> int:
        """The place of the step that begins at a moment, which is made where there is none."""
        place = bisect_left(self._times, moment)
        if place == len(self._times) or self._times[place] != moment:
            self._times.insert(place, moment)
            self._free.insert(place, self._free[place - 1])
        return place

    def _forget(self) -> None:
        past = bisect_right(self._times, self.state.now) - 1
        if past > 0:
            del self._times[:past]
            del self._free[:past]


POLICY = ConservativeBackfill
