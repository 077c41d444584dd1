"""Which rank, in which phase, holds the others up.

In synchronous training the slow rank computes and the others wait for it, so the phase in which a
rank is slow shows on that rank, and `communication`, in which the others wait, on all the others.
A rank is suspected in the phase where it exceeds the median of its peers by most, if that is at
least a twentieth of a step, a tenth of the phase, and beyond the spread of the others (3.5 scaled
median absolute deviations, Iglewicz and Hoaglin 1993). It is named once it was suspected in two of
the last three intervals: one slow interval is an accident.

Ranks that wait for each other *inside* a phase (FSDP2 all-gathers, tensor parallelism, neighbours
in a pipeline) look alike here; `ridgeline trace stragglers` tells them apart in profiler windows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import Any

from ridgeline.train.part import FilledModel, Part

WAITING = "communication"
_STEP_SHARE = 0.05
_PHASE_SHARE = 0.10
_DEVIATIONS = 3.5
_SIGMA_OF_MAD = 1.4826
_INTERVALS = 3
_NEEDED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A rank that stood out in one interval."""

    rank: int
    phase: str
    seconds: float
    peers_seconds: float
    """The median of its peers in that phase."""
    step_share: float
    """The share of the interval for which the others waited for it."""


def suspect(
    by_rank: Sequence[Mapping[str, float]], peers: Sequence[int] | None = None
) -> Suspicion | None:
    """The rank that stands out most, if one does.

    Args:
        by_rank: Seconds of each phase, for each rank, over the same steps.
        peers: A number for each rank; ranks with equal numbers do the same work (a pipeline stage
            is compared with its own replicas). None: all do.

    >>> even = {"data": 0.1, "forward": 1.0, "communication": 0.2}
    >>> suspect([even, even, even | {"data": 0.6}, even]).phase
    'data'
    """
    found = [
        one
        for group in sorted(set(peers or [0]))
        for one in _suspects(
            [r for r in range(len(by_rank)) if not peers or peers[r] == group], by_rank
        )
    ]
    return max(found, key=lambda one: one.step_share, default=None)


def _suspects(ranks: list[int], by_rank: Sequence[Mapping[str, float]]) -> list[Suspicion]:
    if len(ranks) < 2:
        return []
    step = median(sum(by_rank[rank].values()) for rank in ranks)
    found = []
    for phase in by_rank[ranks[0]]:
        if phase == WAITING:
            continue
        seconds = {rank: by_rank[rank][phase] for rank in ranks}
        # Of two ranks the quicker one is what the other could be.
        middle = median_low(seconds.values())
        spread = _SIGMA_OF_MAD * median(abs(value - middle) for value in seconds.values())
        slowest = max(seconds, key=lambda rank: seconds[rank])
        excess = seconds[slowest] - middle
        odd = len(ranks) < 4 or excess > _DEVIATIONS * spread
        if odd and excess > max(_STEP_SHARE * step, _PHASE_SHARE * middle):
            found.append(
                Suspicion(
                    rank=slowest,
                    phase=phase,
                    seconds=seconds[slowest],
                    peers_seconds=middle,
                    step_share=excess / step,
                )
            )
    return found


class StragglerWatch(Part):
    """A memory of the last intervals, so that only what lasts is named."""

    name = "stragglers"

    def __init__(self, peers: Sequence[int] | None = None) -> None:
        """Ranks with equal numbers do the same work; None: all do."""
        self._peers = peers
        self._last: deque[Suspicion | None] = deque(maxlen=_INTERVALS)

    @classmethod
    def make(cls, filled: FilledModel) -> StragglerWatch:
        """Every run is watched; the ranks of one pipeline stage do the same work."""
        ranks = filled.ranks
        stage_ranks = ranks.world // ranks.size("pp")  # the world is ordered by stage
        return cls([rank // stage_ranks for rank in range(ranks.world)])

    def figures(self, steps: int, phases_by_rank: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        """Who holds the others up."""
        del steps
        return {"straggler": self.judge(phases_by_rank)}

    def judge(self, by_rank: Sequence[Mapping[str, float]]) -> str:
        """Who holds the others up, in words; empty where nobody does, or not yet for sure."""
        found = suspect(by_rank, self._peers)
        self._last.append(found)
        if found is None:
            return ""
        who = (found.rank, found.phase)
        times = sum(one is not None and (one.rank, one.phase) == who for one in self._last)
        if times < _NEEDED:
            return ""
        ratio = found.seconds / found.peers_seconds if found.peers_seconds else float("inf")
        much = f"{ratio:.1f} times its peers'" if ratio < 100 else "far above its peers'"
        return (
            f"rank {found.rank} is slow in {found.phase}: {much}, {found.step_share:.0%} of a step"
        )
