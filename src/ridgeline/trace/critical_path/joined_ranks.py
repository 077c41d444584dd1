"""Ranks on one clock, joined by their collectives, and when the job would end with less work.

In a what-if the ranks go through their graphs in turn (`rank_path.ShortenedGraph`), every moment as
early as it may be. At the end of a collective a rank stops until every other one of it has told how
much earlier it starts. Such a start is earlier in time than the end that waits for it, hence some
rank can always go on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.communication.matching import AlignedRanks, MatchedCollective, align_ranks
from ridgeline.trace.critical_path.rank_path import ROOT, RankPath, ShortenedGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """A matched collective; one rank waits in it for another."""

    matched: MatchedCollective
    events: tuple[int, ...]
    """For each of its ranks the place among the rank's collectives."""

    @property
    def arrived_us(self) -> float:
        """When the last rank came, on the common clock."""
        return float(self.matched.start_us.max())


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRanks:
    """Ranks on one clock."""

    paths: Sequence[RankPath]
    shift_us: tuple[float, ...]
    origin_us: float
    end_us: float
    last: int
    """Position of the rank that ends last."""
    meetings: Sequence[Meeting]
    warnings: tuple[str, ...]


def joined_ranks(paths: Sequence[RankPath]) -> JoinedRanks:
    """Match collectives, align clocks, and find the window."""
    working = [position for position, path in enumerate(paths) if len(path.walks)]
    if len(paths) > 1 and working:
        whole = align_ranks([path.collectives for path in paths])
    else:
        whole = AlignedRanks(shift_us=(0.0,) * len(paths), clock_offset_us=(0.0,) * len(paths),
                    matched=(), missing_ranks=(), warnings=())  # fmt: skip
    warnings = list(whole.warnings)
    if len(paths) > 1 and working and not whole.matched:
        warnings.append("no collective joins the ranks: the path is that of the one that ends last")
    ends = {p: float(paths[p].walks.time_us[-1]) + whole.shift_us[p] for p in working}
    begins = [paths[p].walks.origin_us + whole.shift_us[p] for p in working]
    return JoinedRanks(
        paths=paths,
        shift_us=whole.shift_us,
        origin_us=min(begins, default=0.0),
        end_us=max(ends.values(), default=0.0),
        last=max(ends, key=lambda position: (ends[position], position), default=0),
        meetings=[_meeting(paths, one) for one in whole.matched],
        warnings=tuple(warnings),
    )


def _meeting(paths: Sequence[RankPath], matched: MatchedCollective) -> Meeting:
    places = tuple(
        int(np.searchsorted(paths[position].collectives.rows, event))
        for position, event in zip(matched.positions, matched.events, strict=True)
    )
    return Meeting(matched=matched, events=places)


def shortened_end_us(joined: JoinedRanks) -> float:
    """The last moment of the shortened job: ranks go on in turn, each as far as it may."""
    graphs = [path.shortened for path in joined.paths]
    if None in graphs:
        raise AssertionError("a what-if needs ranks that were asked with it")
    known = [graph for graph in graphs if graph is not None]
    return job_end_us(known, joined.shift_us, joined.meetings)


def job_end_us(
    graphs: Sequence[ShortenedGraph],
    shift_us: Sequence[float],
    meetings: Sequence[Meeting],
    *,
    without: int | None = None,
    ahead_us: Mapping[int, float] | None = None,
) -> float:
    """The last moment of ranks whose graphs are shortened, on the common clock.

    Args:
        graphs: one for each rank.
        shift_us: what each rank's clock is behind.
        meetings: the collectives that join them.
        without: a rank that nobody waits for, and that does not end the job.
        ahead_us: by how much all of a rank's moments may be earlier, for ranks that may begin so.
    """
    arrivals = [_Arrival(meeting, without) for meeting in meetings]
    turns = [
        _Turn(graph, shift_us[rank], rank, arrivals, (ahead_us or {}).get(rank, 0.0))
        for rank, graph in enumerate(graphs)
        if rank != without
    ]
    running = [turn.run() for turn in turns]
    while running:
        running = [turn for turn in running if next(turn, "done") != "done"]
    return max(turn.latest() for turn in turns)


class _Arrival:
    """How much earlier the last rank comes to a collective, as its ranks tell their own."""

    def __init__(self, meeting: Meeting, without: int | None) -> None:
        self.meeting = meeting
        self.missing = len(meeting.events) - (without in meeting.matched.positions)
        self.earlier = float("inf")

    def report(self, index: int, earlier: float) -> None:
        """Note that one of its ranks comes this much earlier."""
        waits = self.meeting.arrived_us - float(self.meeting.matched.start_us[index])
        self.earlier = min(self.earlier, waits + earlier)
        self.missing -= 1


class _Turn:
    """One rank on its way through its graph; it stops where others have not arrived yet."""

    def __init__(
        self,
        graph: ShortenedGraph,
        shift_us: float,
        rank: int,
        arrivals: Sequence[_Arrival],
        ahead_us: float,
    ) -> None:
        self.graph, self.shift_us = graph, shift_us
        self.starts: dict[int, list[tuple[_Arrival, int]]] = defaultdict(list)
        self.ends: dict[int, list[tuple[_Arrival, float]]] = defaultdict(list)
        self.margin_us = graph.margin_us.astype(float)
        for arrival in arrivals:
            matched = arrival.meeting.matched
            if rank not in matched.positions:
                continue
            index = matched.positions.index(rank)
            event = arrival.meeting.events[index]
            self.starts[int(graph.starts[event])].append((arrival, index))
            transfer = float(matched.end_us[index]) - arrival.meeting.arrived_us
            if transfer > 0:
                own = float(matched.end_us[index] - matched.start_us[index])
                reduction = float(graph.reduction[event])
                # Its own start asks for the transfer at most, and has the waiting to spare.
                least = own - min(own, transfer) + reduction * min(own, transfer)
                self.ends[int(graph.ends[event])].append((arrival, reduction * transfer))
                self.margin_us[graph.ends[event], 0] = least
        self.earlier = np.zeros(len(graph.source))
        self.earlier[ROOT] = ahead_us

    def run(self) -> Iterator[str]:
        """Fill `earlier`; yields where it must wait."""
        slots = self.graph.source.shape[1]
        source = self.graph.source.ravel().data
        margin = self.margin_us.ravel().data
        earlier = self.earlier.data
        for node in range(1, len(earlier)):
            at = node * slots
            best = min(margin[at + s] + earlier[source[at + s]] for s in range(slots))
            for arrival, transfer_us in self.ends.get(node, ()):
                while arrival.missing:
                    yield "waits"
                best = min(best, transfer_us + arrival.earlier)
            earlier[node] = best
            for arrival, index in self.starts.get(node, ()):
                arrival.report(index, best)

    def latest(self) -> float:
        """The last moment, on the common clock."""
        return float((self.graph.latest_us - self.earlier).max()) + self.shift_us
