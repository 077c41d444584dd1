"""Every answer about the traces of a run, as one value: what `ridgeline trace report` draws.

The answers about a rank are made where the rank is read, so that a page of many ranks never holds
their events together; pictures stay within a budget. Of a few ranks each is asked every question.
Of many the facts of the verdict are gathered, and every question is asked of the ranks that stand
for the others: with the longest window, the median one, the shortest, and the one most often last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ridgeline.diagnose.trace_facts import RankFacts, facts_beside
from ridgeline.diagnose.trace_verdict import verdict_of
from ridgeline.hardware.freed_memory import return_freed_memory
from ridgeline.records.finding import TraceFinding
from ridgeline.trace.columns import Trace
from ridgeline.trace.communication.collectives import RankCommunication, communication
from ridgeline.trace.communication.overlap import RankOverlap, overlap
from ridgeline.trace.communication.stragglers import Stragglers, stragglers
from ridgeline.trace.critical_path.path import CriticalPath, PathPiece, path_and_pieces
from ridgeline.trace.critical_path.rank_path import rank_path
from ridgeline.trace.host_calls import look_up_calls
from ridgeline.trace.load import file_of
from ridgeline.trace.memory.allocations import RankMemory, memory_use
from ridgeline.trace.pictures.flame import FlameNode, flame_graph
from ridgeline.trace.pictures.timeline import TraceTimeline, timeline
from ridgeline.trace.time.idle import RankIdle, idle_time
from ridgeline.trace.time.kernels import RankKernels, kernel_use
from ridgeline.trace.time.launch import RankLaunches, launches
from ridgeline.trace.time.operators import RankOperators, operator_times
from ridgeline.trace.time.steps import RankSteps, step_times
from ridgeline.trace.time.sync import RankSync, sync_points

SLICES = 48_000
"""The slices of all timelines on a page together: about a megabyte and a half."""
DRAWN_RANKS = 4
"""So many ranks have a timeline and a flame graph of their own."""
FEW_RANKS = 8
"""Up to so many traces are asked every question."""
ROWS = 40
_NARROWEST = 0.002
_DEEPEST = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnswers:
    """Every answer about one trace."""

    file: str
    rank: int | None
    facts: list[RankFacts]
    idle: list[RankIdle]
    kernels: list[RankKernels]
    overlap: list[RankOverlap]
    communication: list[RankCommunication]
    launches: list[RankLaunches]
    sync: RankSync
    steps: RankSteps
    operators: RankOperators
    memory: RankMemory
    path: CriticalPath
    flame: list[FlameNode]
    timeline: TraceTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutline:
    """What the verdict needs of one trace."""

    file: str
    rank: int | None
    facts: list[RankFacts]

    @property
    def window_us(self) -> float:
        """The windows of its GPUs together."""
        return sum(fact.window_us for fact in self.facts)


Answer = TypeVar("Answer")
Outlined = TypeVar("Outlined", RankAnswers, RankOutline)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAnswers:
    """Every answer about the ranks of a run, and what bounds it."""

    ranks: Sequence[RankOutline]
    verdict: Sequence[TraceFinding]
    stragglers: Stragglers | None
    detailed: Mapping[int, RankAnswers]
    """Position in `ranks` → every answer about it."""
    drawn: Mapping[int, str]
    """The ranks that have pictures of their own: position → why this one."""


def rank_outline(trace: Trace, window: str = "trace") -> RankOutline:
    """Gather the facts of the verdict from one trace."""
    return RankOutline(file=trace.file, rank=trace.rank, facts=facts_beside(trace, window))


def rank_answers(trace: Trace, window: str = "trace", ranks: int = 1) -> RankAnswers:
    """Ask every question of one trace; `ranks` share the page's budget of slices.

    What nearly all of them need is looked up first. Questions that keep much more are asked of a
    copy that keeps it for itself. What the path has freed goes back to the system, as it is most.
    """
    slices = SLICES // min(DRAWN_RANKS, max(1, ranks))
    look_up_calls(trace)

    def apart(question: Callable[[Trace], Answer]) -> Answer:
        return question(trace.apart())

    path, drawn = _path_and_timeline(apart, slices)
    return_freed_memory(trace.raw_bytes)
    return RankAnswers(
        file=trace.file,
        rank=trace.rank,
        path=path,
        timeline=drawn,
        flame=apart(partial(flame_graph, narrowest=_NARROWEST, deepest=_DEEPEST)),
        operators=apart(lambda one: operator_times(one, window, top=ROWS)),
        idle=idle_time(trace, window, top=ROWS),
        facts=apart(lambda one: facts_beside(one, window)),
        kernels=kernel_use(trace, window, top=ROWS),
        overlap=overlap(trace, window, top=ROWS),
        communication=communication(trace, window, top=ROWS),
        launches=launches(trace, window),
        sync=sync_points(trace, window, top=ROWS),
        steps=step_times(trace),
        memory=memory_use(trace, top=ROWS),
    )


def _path_and_timeline(
    apart: Callable[[Callable[[Trace], Any]], Any], slices: int
) -> tuple[CriticalPath, TraceTimeline]:
    """Draw the path on the timeline; its pieces are as large as a third of the trace, and go."""
    path, pieces = apart(_whole_path)
    return path, apart(lambda one: timeline(one, pieces, slices))


def _whole_path(trace: Trace) -> tuple[CriticalPath, list[PathPiece]]:
    return path_and_pieces([rank_path(trace)])


def trace_answers(ranks: Sequence[RankAnswers]) -> TraceAnswers:
    """Say what bounds the ranks together, and who is waited for; every rank has its answers."""
    outlines = [RankOutline(file=one.file, rank=one.rank, facts=one.facts) for one in ranks]
    return outlined_answers(outlines, dict(enumerate(ranks)))


def outlined_answers(
    ranks: Sequence[RankOutline], detailed: Mapping[int, RankAnswers]
) -> TraceAnswers:
    """Say the same where only some ranks (position → answers) were asked everything."""
    together = stragglers_of(ranks)
    standing = standing_for(ranks, together)
    return TraceAnswers(
        ranks=ranks,
        verdict=verdict_of([fact for rank in ranks for fact in rank.facts]),
        stragglers=together,
        detailed=detailed,
        drawn={place: why for place, why in standing.items() if place in detailed},
    )


def stragglers_of(ranks: Sequence[RankOutline]) -> Stragglers | None:
    """Who is waited for; None for a single rank."""
    collectives = [rank.facts[0].collectives for rank in ranks if rank.facts]
    return stragglers(collectives) if len(collectives) > 1 else None


def standing_for(ranks: Sequence[RankOutline], together: Stragglers | None) -> dict[int, str]:
    """The ranks to look at: position → why this one; every rank where they are few."""
    if len(ranks) <= DRAWN_RANKS:
        return dict.fromkeys(range(len(ranks)), "")
    order = sorted(range(len(ranks)), key=lambda place: -ranks[place].window_us)
    found = {
        order[0]: "longest window",
        order[(len(order) - 1) // 2]: "median window",
        order[-1]: "shortest window",
    }
    late = max(together.ranks, key=lambda one: one.last_arrivals) if together else None
    if late is not None and late.last_arrivals:
        place = [rank.file for rank in ranks].index(late.file)
        found[place] = ", ".join(filter(None, (found.get(place), "most often last")))
    return found


def asked_in_full(
    ranks: Sequence[RankOutline], ask: Callable[[list[str]], list[RankAnswers]]
) -> TraceAnswers:
    """Ask every question of the ranks that stand for the others; `ask` reads files."""
    chosen = standing_for(ranks, stragglers_of(ranks))
    asked = list(dict.fromkeys(file_of(ranks[place].file) for place in chosen))
    answers = {(one.file, number): one for one, number in _numbered(ask(asked))}
    every = {place: answers[one.file, number]
             for place, (one, number) in enumerate(_numbered(ranks))
             if (one.file, number) in answers}  # fmt: skip
    return outlined_answers(ranks, {place: every[place] for place in chosen})


def _numbered(ranks: Sequence[Outlined]) -> list[tuple[Outlined, int]]:
    """Each with its number among those of the same file: an Nsight export holds several GPUs."""
    seen: Counter[str] = Counter()
    found = []
    for one in ranks:
        found.append((one, seen[one.file]))
        seen[one.file] += 1
    return found
