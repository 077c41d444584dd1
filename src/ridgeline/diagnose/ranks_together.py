"""What only the ranks together tell: who waits for whom, and what the job would lose without.

Where the graphs of all ranks are at hand (`trace/critical_path/job_counterfactual.py`), a cure is
worth what the job gets shorter by it. Where a job is too large for that, the rank that gains least
decides; a wait costs no more than communication as a whole.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cache

from ridgeline.diagnose.message_waits import (
    LateRank,
    bubble_us,
    late_rank,
    waits_are_for_messages,
)
from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.trace.communication.matching import AlignedRanks, align_ranks
from ridgeline.trace.communication.stragglers import stragglers
from ridgeline.trace.critical_path.job_counterfactual import COMPUTE, JobCounterfactual

_ALSO = {COMPUTE: (), "host": ("host", "python"), "loader": ("loader",)}
"""With what a rank is late → cures that take it away on every rank, and so on this one."""
_HOLDS_UP = 0.1
"""A GPU that waits for its host for so much of the window may be late for that."""
_MOSTLY = 0.75
"""A rank that costs so much of what all of them do is the late one."""


class RanksTogether:
    """The ranks of one job, whose collectives match."""

    def __init__(
        self, facts: Sequence[RankFacts], aligned: AlignedRanks, joined: JobCounterfactual | None
    ) -> None:
        self.facts, self.joined = facts, joined
        self.stragglers = stragglers([fact.collectives for fact in facts], aligned)
        self.saved_us = cache(self._saved_us)
        self.by_messages = waits_are_for_messages(aligned)
        """Do they wait for messages of each other more than in collectives?"""
        self.late: LateRank | None = late_rank(facts, joined) if self.by_messages else None
        self.bubble_us = bubble_us(facts, aligned) if self.by_messages else 0.0
        self.skew_us = self._skew_us()
        in_turn_us = self._in_turn_us()
        self.in_turn = in_turn_us > self.skew_us
        """Do ranks compute for longer in turn, which costs more than the one that is late most?"""
        self.skew_us = max(self.skew_us, in_turn_us)

    def _saved_us(self, cure: str) -> float:
        """What the job would lose without something, in µs."""
        if self.joined is not None:
            of_one = (
                self.late.recorded_us
                if self.late is not None and cure in _ALSO[self.late.by]
                else 0.0
            )
            return max(0.0, self.joined.saved_us(cure) - of_one)
        least = min(fact.saved[cure] for fact in self.facts)
        if cure != "communication":
            return least
        late = self._of(self.stragglers.ranks[0].file)
        return max(0.0, late.saved[cure] - self.stragglers.ranks[0].skew_wait_us)

    def _skew_us(self) -> float:
        """What the job would lose if its late rank came with the others."""
        if self.by_messages:
            return self.late.saved_us if self.late is not None else 0.0
        late, *others = self.stragglers.ranks
        if self.joined is not None:
            places = [fact.summary.file for fact in self.facts]
            return self.joined.skew_us(places.index(late.file), places.index(others[-1].file))
        costs = [
            min(
                max(0.0, rank.skew_wait_us - late.skew_wait_us),
                self._of(rank.file).saved["communication"],
            )
            for rank in others
        ]
        return statistics.median(costs)

    def _in_turn_us(self) -> float:
        """What the job would lose if ranks that compute meanwhile came to each collective at once.

        Without waiting for one rank it would wait for the second to last. Of n loads that are drawn
        evenly the last is (n-1)/2 times as far from the mean as from the second.
        """
        if self.joined is None or self.by_messages:
            return 0.0
        if max(fact.idle_of_host_us / fact.window_us for fact in self.facts) > _HOLDS_UP:
            return 0.0
        gained = [self.joined.skew_of_us(place) for place in range(len(self.facts))]
        if max(gained) > _MOSTLY * sum(gained):
            return 0.0
        exposed = statistics.fmean(fact.summary.communication_exposed_us for fact in self.facts)
        waited = self.stragglers.waited_us / len(gained)
        return min(0.5 * (len(gained) - 1) * sum(gained), waited, exposed)

    def _of(self, file: str) -> RankFacts:
        return next(fact for fact in self.facts if fact.summary.file == file)


def ranks_together(facts: Sequence[RankFacts]) -> RanksTogether | None:
    """The waits of the ranks for each other; None for one rank, or ranks that share nothing."""
    if len({fact.summary.file for fact in facts}) < len(facts) or len(facts) < 2:
        return None  # GPUs of one process are one rank's
    aligned = align_ranks([fact.collectives for fact in facts])
    if not aligned.matched:
        return None
    graphs = [fact.graphs for fact in facts if fact.graphs is not None]
    joined = JobCounterfactual(graphs, aligned) if len(graphs) == len(facts) else None
    return RanksTogether(facts, aligned, joined)
