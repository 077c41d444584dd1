"""Every answer about the traces of a run, as one value: what `ridgeline trace report` draws.

The answers about a rank are made where the rank is read, so that a page of many ranks never holds
their events together; pictures stay within a budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.diagnose.trace_facts import RankFacts, trace_facts
from ridgeline.diagnose.trace_verdict import verdict_of
from ridgeline.records.finding import TraceFinding
from ridgeline.trace.columns import Trace
from ridgeline.trace.communication.collectives import RankCommunication, communication
from ridgeline.trace.communication.overlap import RankOverlap, overlap
from ridgeline.trace.communication.stragglers import Stragglers, stragglers
from ridgeline.trace.critical_path.path import CriticalPath, job_path, job_pieces
from ridgeline.trace.critical_path.rank_path import rank_path
from ridgeline.trace.memory.allocations import RankMemory, memory_use
from ridgeline.trace.pictures.flame import FlameNode, flame_graph, pruned
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
class TraceAnswers:
    """Every answer about the ranks of a run, and what bounds it."""

    ranks: Sequence[RankAnswers]
    verdict: Sequence[TraceFinding]
    stragglers: Stragglers | None

    @property
    def drawn(self) -> Sequence[RankAnswers]:
        """The ranks that have pictures of their own."""
        return self.ranks[:DRAWN_RANKS]


def rank_answers(trace: Trace, window: str = "trace", ranks: int = 1) -> RankAnswers:
    """Ask every question of one trace; `ranks` share the page's budget of slices."""
    slices = SLICES // min(DRAWN_RANKS, max(1, ranks))
    path = [rank_path(trace)]  # first, because it needs the most room
    roots = flame_graph(trace)
    widest = max((max(node.host_us, node.gpu_us) for node in roots), default=0.0)
    return RankAnswers(
        file=trace.file,
        rank=trace.rank,
        facts=trace_facts(trace, window),
        idle=idle_time(trace, window, top=ROWS),
        kernels=kernel_use(trace, window, top=ROWS),
        overlap=overlap(trace, window, top=ROWS),
        communication=communication(trace, window, top=ROWS),
        launches=launches(trace, window),
        sync=sync_points(trace, window, top=ROWS),
        steps=step_times(trace),
        operators=operator_times(trace, window, top=ROWS),
        memory=memory_use(trace, top=ROWS),
        path=job_path(path),
        flame=pruned(roots, _NARROWEST * widest, _DEEPEST),
        timeline=timeline(trace, job_pieces(path)[0], slices),
    )


def trace_answers(ranks: Sequence[RankAnswers]) -> TraceAnswers:
    """Say what bounds the ranks together, and who is waited for."""
    facts = [fact for rank in ranks for fact in rank.facts]
    collectives = [rank.facts[0].collectives for rank in ranks if rank.facts]
    return TraceAnswers(
        ranks=ranks,
        verdict=verdict_of(facts),
        stragglers=stragglers(collectives) if len(collectives) > 1 else None,
    )
