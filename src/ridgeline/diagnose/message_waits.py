"""What ranks lose that wait for each other's messages: stages of a pipeline, ranks of a ring.

Who comes last to a message is not who is late: a stage in the middle hands on what it waited for
itself. So the late rank is the one whose excess over the others, in computing or in its host's
time, the job would lose most without (`job_counterfactual.py`).

    late_rank       works longer than the median of the others
    bubble_us       what every rank waits, the busiest one too: nobody is late then, the pipeline
                    fills and drains
    waiting_share   all that one rank alone can say
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.trace.communication.matching import AlignedRanks
from ridgeline.trace.critical_path.job_counterfactual import COMPUTE, JobCounterfactual

_OF_NOTE = 0.02
"""The part of the window that a rank works longer from which on it is late."""
_WORK: dict[str, Callable[[RankFacts], float]] = {
    COMPUTE: lambda fact: fact.summary.compute_us,
    "host": lambda fact: fact.idle_of_host_us - fact.idle["loader"],
    "loader": lambda fact: fact.idle["loader"],
}
"""Cure → the time of a rank that it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRank:
    """The rank that the others wait for, and with what it is late."""

    fact: RankFacts
    by: str
    """`compute`, `host` or `loader`: what it takes most beyond the others."""
    own_us: float
    others_us: float
    """The median of the other ranks."""
    saved_us: float
    """What the job would lose if it were as quick as they are in all of these."""
    recorded_us: float
    """The part of it that its own record shows, and not the others' waits before that begins."""


def late_rank(facts: Sequence[RankFacts], joined: JobCounterfactual | None) -> LateRank | None:
    """The rank whose excess costs the job most; None where none is late."""
    spent = {by: [work(fact) for fact in facts] for by, work in _WORK.items()}
    longest = {max(range(len(facts)), key=times.__getitem__) for times in spent.values()}
    found = [_late(facts, place, spent, joined) for place in sorted(longest)]
    late = [one for one in found if one is not None]
    return max(late, key=lambda one: one.saved_us, default=None)


def _late(
    facts: Sequence[RankFacts],
    place: int,
    spent: Mapping[str, Sequence[float]],
    joined: JobCounterfactual | None,
) -> LateRank | None:
    """What one rank takes longer than the others; None where it is hardly anything."""
    own = {by: times[place] for by, times in spent.items()}
    others = {
        by: statistics.median([*times[:place], *times[place + 1 :]]) for by, times in spent.items()
    }
    least = _OF_NOTE * facts[place].window_us
    excess = {by: own[by] - others[by] for by in spent if own[by] - others[by] >= least}
    if not excess:
        return None
    saved = recorded = sum(excess.values())
    if joined is not None:
        shares = {by: us / own[by] for by, us in excess.items()}
        saved = joined.evened_us(place, shares)
        recorded = joined.evened_us(place, shares, before=False)
    by = max(excess, key=excess.__getitem__)
    return LateRank(
        fact=facts[place], by=by, own_us=own[by], others_us=others[by],
        saved_us=saved, recorded_us=recorded,
    )  # fmt: skip


def waits_are_for_messages(aligned: AlignedRanks) -> bool:
    """Is most of what ranks wait for each other in messages, and not in collectives?"""
    waited = {True: 0.0, False: 0.0}
    for one in aligned.matched:
        waited[one.is_message] += float(one.wait_us.sum())
    return waited[True] > waited[False]


def bubble_us(facts: Sequence[RankFacts], aligned: AlignedRanks) -> float:
    """What the rank that waits least for messages waits, with no compute beside it."""
    waited = np.zeros(len(facts))
    for one in aligned.matched:
        waited[list(one.positions)] += one.wait_us
    exposed = [fact.summary.communication_exposed_us for fact in facts]
    return float(np.minimum(waited, exposed).min())


def waiting_share(fact: RankFacts) -> float:
    """The share of one rank's communication that is messages above the fastest like them.

    What a receive takes beyond that it waits for its sender, who may be slow, or have had to wait.
    """
    talks = fact.collectives
    taken = talks.end_us - talks.start_us
    alike: dict[object, list[float]] = defaultdict(list)
    for us, message, said in zip(taken.tolist(), talks.messages, talks.facts, strict=False):
        if message is not None:
            size = None if said is None else (said.elements_in, said.elements_out, said.dtype)
            alike[message.sends, size].append(us)
    above = sum(sum(times) - len(times) * min(times) for times in alike.values())
    return above / float(taken.sum()) if len(taken) and taken.sum() > 0 else 0.0
