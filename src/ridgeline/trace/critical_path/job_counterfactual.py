"""What a job would lose in length if one thing were gone on all of its ranks: `JobCounterfactual`.

Ranks wait for each other, so what one of them gains another may not let it keep: the one that comes
last to a collective decides when it is over. Each rank brings its graph under every cure worth
asking about (`counterfactual.py`); where they meet, they go through them in turn
(`joined_ranks.py`), and the job ends with the last of them.

    saved_us(cure)      the cure on every rank
    evened_us(rank, …)  a part of the cure on one rank: a stage as quick as the others. A rank that
                        is late is late with its profiler, too, so nothing waits for it either in
                        what the others had recorded before its own record begins
    skew_us             the late rank comes with the others. Chance makes every rank late at times,
                        so what would be gained without the rank that is waited for least is taken
                        off
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.trace.columns import Floats, Ints
from ridgeline.trace.communication.matching import AlignedRanks
from ridgeline.trace.critical_path.joined_ranks import Meeting, job_end_us
from ridgeline.trace.critical_path.rank_path import ShortenedGraph

UNCHANGED = ""
"""The cure that cures nothing."""
COMPUTE = "compute"
"""The cure that takes all kernels away that do not communicate; ranks take a part of it."""
ALL_WORK = "work"
"""The cure that takes all of the GPU's time away, that of communication and copies as well."""
ON_THE_GPU = frozenset({"communication", "copy", "kernels", "precision", "uneven", ALL_WORK})
"""Cures that shorten the GPU's own work: those of the host cannot save more than idle time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGraphs:
    """The window of one rank, as far as it decides when the job ends."""

    rows: Ints
    """GPU events of the trace that are the collectives in the window."""
    names: tuple[str, ...]
    start_us: Floats
    """When each of them began, on the rank's own clock."""
    length_us: Floats
    """How long each of them took."""
    free_us: float
    """Time without any work on the GPU."""
    graphs: dict[str, ShortenedGraph]
    """Cure → the graph under it; a cure that is not here changes nothing on this rank."""

    def under(self, cure: str) -> ShortenedGraph:
        """The graph with something gone."""
        return self.graphs.get(cure, self.graphs[UNCHANGED])


class JobCounterfactual:
    """The ranks of one job on one clock."""

    def __init__(self, ranks: Sequence[RankGraphs], aligned: AlignedRanks) -> None:
        """Join the ranks, which are in the order of `aligned`, at the collectives they share."""
        self.ranks, self.shift_us = ranks, aligned.shift_us
        self.alone_us = _waits_alone(ranks, aligned)
        found = (_meeting(ranks, place, aligned) for place in range(len(aligned.matched)))
        self.meetings = [meeting for meeting in found if meeting is not None]
        self.end_us = self._end_us(UNCHANGED)

    def saved_us(self, cure: str) -> float:
        """By how much the job gets shorter with something gone on all ranks."""
        if not any(cure in rank.graphs for rank in self.ranks):
            return 0.0
        found = self.end_us - self._end_us(cure)
        if cure not in ON_THE_GPU:
            found = min(found, max(rank.free_us for rank in self.ranks))
        return max(0.0, found)

    def skew_us(self, late: int, early: int) -> float:
        """By how much if one rank came with the others, beyond what chance makes of another."""
        return max(0.0, self.skew_of_us(late) - self.skew_of_us(early))

    def skew_of_us(self, rank: int) -> float:
        """By how much if nobody waited for one rank, chance and all."""
        return self.end_us - self._end_us(UNCHANGED, without=rank)

    def evened_us(self, place: int, shares: Mapping[str, float], *, before: bool = True) -> float:
        """By how much if one rank had a share of some cures, and the others nothing.

        `shares` are from 0 to 1, by cure. With `before` the others do not wait for the beginning of
        its record either.
        """
        graphs = [rank.under(UNCHANGED) for rank in self.ranks]
        cures = [(self.ranks[place].under(cure), share) for cure, share in shares.items()]
        others = [rank for rank in range(len(graphs)) if rank != place and before]
        waits = {rank: self._waits_before(rank, place) for rank in others}
        for rank, by_us in waits.items():
            graphs[rank] = _shorter(graphs[rank], by_us)
        graphs[place] = _part_of(graphs[place], cures)
        ahead = max(
            (
                float(by_us.sum()) + self._wait_at_first(rank, place)
                for rank, by_us in waits.items()
            ),
            default=0.0,
        )
        end = job_end_us(graphs, self.shift_us, self.meetings, ahead_us={place: ahead})
        return max(0.0, self.end_us - end)

    def _waits_before(self, rank: int, late: int) -> Floats:
        """What one rank waits, for each of its collectives, before the record of another begins."""
        begins = self.ranks[rank].start_us + self.shift_us[rank]
        recorded = float((self.ranks[late].start_us + self.shift_us[late]).min(initial=np.inf))
        found: Floats = np.where(begins < recorded, self.alone_us[rank], 0.0)
        return found

    def _wait_at_first(self, rank: int, late: int) -> float:
        """What one rank waits for another where they meet first."""
        for meeting in self.meetings:
            matched = meeting.matched
            if rank in matched.positions and late in matched.positions:
                return float(matched.wait_us[matched.positions.index(rank)])
        return 0.0

    def _end_us(self, cure: str, *, without: int | None = None) -> float:
        graphs = [rank.under(cure) for rank in self.ranks]
        if without is not None:
            graphs = [
                _shorter(graph, alone) for graph, alone in zip(graphs, self.alone_us, strict=True)
            ]
        return job_end_us(graphs, self.shift_us, self.meetings, without=without)


def _waits_alone(ranks: Sequence[RankGraphs], aligned: AlignedRanks) -> list[Floats]:
    """What each rank waits in collectives that the late one's trace lacks: those before its first.

    What they took beyond the longest transfer of their name is waiting.
    """
    longest: dict[str, float] = {}
    for one in aligned.matched:
        longest[one.name] = max(one.transfer_us, longest.get(one.name, 0.0))
    found = []
    for place, rank in enumerate(ranks):
        seen = [
            event
            for one in aligned.matched
            for position, event in zip(one.positions, one.events, strict=True)
            if position == place
        ]
        alone = ~np.isin(rank.rows, seen)
        usual = np.array([longest.get(name, np.inf) for name in rank.names])
        found.append(np.where(alone, np.maximum(rank.length_us - usual, 0.0), 0.0))
    return found


def _shorter(graph: ShortenedGraph, by_us: Floats) -> ShortenedGraph:
    """The graph with time removed from its collectives."""
    if not by_us.any():
        return graph
    margin = graph.margin_us.copy()
    margin[graph.ends, 0] += by_us
    return replace(graph, margin_us=margin)


def _part_of(
    graph: ShortenedGraph, cures: Sequence[tuple[ShortenedGraph, float]]
) -> ShortenedGraph:
    """The graph with shares of what cures take out of it; an edge that one takes away is gone."""
    edges = np.isfinite(graph.margin_us)
    margin, latest = graph.margin_us.copy(), graph.latest_us.copy()
    for cured, share in cures:
        ends = np.isfinite(graph.latest_us) & np.isfinite(cured.latest_us)
        margin[edges] += share * (cured.margin_us[edges] - graph.margin_us[edges])
        latest[ends] += share * (cured.latest_us[ends] - graph.latest_us[ends])
    return replace(graph, margin_us=margin, latest_us=latest)


def _meeting(ranks: Sequence[RankGraphs], place: int, aligned: AlignedRanks) -> Meeting | None:
    """One collective by the places among each rank's; None where it lies outside of a window."""
    matched = aligned.matched[place]
    events = []
    for position, event in zip(matched.positions, matched.events, strict=True):
        rows = ranks[position].rows
        at = int(np.searchsorted(rows, event))
        if at == len(rows) or int(rows[at]) != event:
            return None
        events.append(at)
    return Meeting(matched=matched, events=tuple(events))
