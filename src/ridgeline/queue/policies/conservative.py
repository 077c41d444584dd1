"""Conservative backfill, in which every job gets a start on arrival, and nobody ever delays it.

Mu'alem and Feitelson, IEEE TPDS 2001, section 2. Durations are known here, so reservations hold as
they were made; a job that is slowed by others leaves what was promised to them as it was. They are
made on the number of free GPUs; on nodes, a job whose GPUs lie scattered at its start waits for the
next moment at which it fits.
"""

from __future__ import annotations

import heapq

import numpy as np

from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import PolicyCard

CARD = PolicyCard(
    title="every job gets a start that no later one delays", source="Mu'alem and Feitelson 2001"
)


_FIRST_STEPS = 256


class ConservativeBackfill:
    """Free GPUs over the time to come, as steps, and the starts that were promised."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._steps = np.zeros((2, _FIRST_STEPS))
        """When each step begins, and how many GPUs are free from then on."""
        self._steps[1, 0] = state.pool.gpus
        self._begin, self._end = 0, 1
        """The steps that are not past."""
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
        steps = self._steps[:, self._begin : self._end]
        times = np.append(steps[0], NEVER)
        # Runs of steps with enough free GPUs: a run must be as long as the job.
        enough = np.zeros(len(times) + 1, dtype=np.int8)
        enough[1:-1] = steps[1] >= size
        edges = np.diff(enough)
        begins = np.maximum(times[np.flatnonzero(edges == 1)], self.state.now)
        ends = times[np.flatnonzero(edges == -1)]
        return float(begins[int(np.argmax(ends - begins >= length))])

    def _reserve(self, start: float, end: float, size: float) -> None:
        first, last = self._step(start), self._step(end)
        self._steps[1, self._begin + first : self._begin + last] -= size

    def _step(self, moment: float) -> int:
        """The place of the step that begins at a moment, which is made where there is none."""
        times = self._steps[0, self._begin : self._end]
        place = int(times.searchsorted(moment))
        if place == len(times) or times[place] != moment:
            if self._end == self._steps.shape[1]:
                kept = self._steps[:, self._begin : self._end]
                self._steps = np.hstack([kept, np.zeros((2, max(_FIRST_STEPS, kept.shape[1])))])
                self._begin, self._end = 0, kept.shape[1]
            at = self._begin + place
            self._steps[:, at + 1 : self._end + 1] = self._steps[:, at : self._end].copy()
            self._steps[:, at] = moment, self._steps[1, at - 1]
            self._end += 1
        return place

    def _forget(self) -> None:
        times = self._steps[0, self._begin : self._end]
        self._begin += max(0, int(times.searchsorted(self.state.now, side="right")) - 1)


POLICY = ConservativeBackfill
