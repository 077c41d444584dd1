"""What bounds a run, from its traces alone: every rule over every rank, the first cause first.

Order: a cause may bound the run when its weight is at least its rule's `LEADS_FROM`. The weight is
the geometric mean of what the cause takes of the window (`share`) and what the window would lose
without it (`worth`): a cause that is seen everywhere but whose cure brings nothing does not lead,
and neither does one whose cure brings much by way of something else. Causes whose cure a trace
cannot try weigh their share. The heaviest comes first; where most of communication is waiting for
another rank, or the late rank alone waits for its host, that comes before what a rank shows by
itself; idle time that nothing explains comes after what is explained. Where none leads, the run is
bound by its kernels if they fill half of the window. When the second weighs almost as much as the
first, the first is less sure.

    trace_verdict([trace])                    one trace or all ranks of a job
    verdict_of(facts)                         the same from facts gathered rank by rank in workers
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ridgeline.diagnose.trace_facts import RankFacts, trace_facts
from ridgeline.diagnose.trace_reading import TraceReading
from ridgeline.diagnose.trace_rules import all_trace_rules
from ridgeline.records.finding import TraceFinding
from ridgeline.trace.columns import Trace

_CLOSE = 1.3
"""A second cause within this factor of the first makes the first a guess."""
_OF_NOTE = 0.1
_UNSURE = 0.55
_BETWEEN_RANKS = ("rank-skew",)
_SENDING = "communication-bound"
_MOSTLY_WAITING = 0.7
_OF_THE_LATE_ONE = 0.2
"""So much more of its window the late rank alone waits for its host: that is why it is late."""
_INSTEAD = ("cpu-only", "hardly-any-gpu-work", "empty-window")
"""Where one of these holds the window is not one that shares of it mean anything for."""
_UNEXPLAINED = ("unexplained-idle",)
_OF_THE_GPU = ("compute-bound", "memory-bound", "gpu-bound")
_NO_RIVALS = (
    *_OF_THE_GPU, "no-tensor-cores", "small-kernels", "unknown-kernels", "not-bucketed",
)  # fmt: skip
"""They hold beside another cause and do not contradict it."""


def trace_verdict(traces: Sequence[Trace], window: str = "auto") -> list[TraceFinding]:
    """Findings of one job, the cause that bounds it first; `traces` are its ranks."""
    return verdict_of([fact for trace in traces for fact in trace_facts(trace, window)])


def verdict_of(facts: Sequence[RankFacts]) -> list[TraceFinding]:
    """The same from facts."""
    reading = TraceReading(facts)
    leading: list[tuple[float, TraceFinding]] = []
    others: list[tuple[float, TraceFinding]] = []
    for rule in all_trace_rules().values():
        for finding in rule.find(reading):
            weight = _weight(finding, reading, by=rule.LEADS_BY)
            leads_from = getattr(rule, "leads_from", lambda _, rule=rule: rule.LEADS_FROM)
            (leading if weight >= leads_from(finding) else others).append((weight, finding))
    leading.sort(key=_importance)
    _waiting_before_sending(leading)
    others.sort(key=lambda one: (one[1].cause in _NO_RIVALS, -one[0]))
    return _with_doubt(leading + others)


def _weight(finding: TraceFinding, reading: TraceReading, by: str) -> float:
    """How much of the window hangs on a finding, from 0 to 1."""
    if by == "share":
        return finding.share
    worth = finding.worth_us / reading.window_us if reading.window_us else 0.0
    return math.sqrt(max(0.0, finding.share * worth))


def _importance(one: tuple[float, TraceFinding]) -> tuple[bool, bool, bool, bool, float]:
    weight, finding = one
    return (
        finding.cause not in _INSTEAD,
        finding.cause not in _BETWEEN_RANKS or not _explains_the_others(finding),
        finding.cause in _UNEXPLAINED,
        finding.cause in _OF_THE_GPU,
        -weight,
    )


def _waiting_before_sending(leading: list[tuple[float, TraceFinding]]) -> None:
    """Put waiting before sending where it is worth more: both are sides of one exposed time.

    Their shares do not compare: what is sent is exposed on every rank, and the late one waits for
    nobody.
    """
    places = {finding.cause: place for place, (_, finding) in enumerate(leading)}
    sending, waiting = (places.get(cause) for cause in (_SENDING, *_BETWEEN_RANKS))
    if sending is None or waiting is None or waiting < sending:
        return
    if leading[waiting][1].worth_us > leading[sending][1].worth_us:
        leading.insert(sending, leading.pop(waiting))


def _explains_the_others(finding: TraceFinding) -> bool:
    """Do ranks mostly wait, or is what else is found the trouble of the late one alone?"""
    waiting, late, others = (
        float(finding.evidence.get(name, 0.0))
        for name in (
            "skew_wait_share_of_communication",
            "late_rank_host_wait_share",
            "other_ranks_host_wait_share",
        )
    )
    return waiting >= _MOSTLY_WAITING or late - others >= max(_OF_THE_LATE_ONE, 0.5 * late)


def _with_doubt(weighed: list[tuple[float, TraceFinding]]) -> list[TraceFinding]:
    found = [finding for _, finding in weighed]
    if len(found) < 2 or found[0].cause in _INSTEAD:
        return found
    rivals = [weight for weight, one in weighed[1:] if one.cause not in _NO_RIVALS]
    heaviest, first = max(rivals, default=0.0), found[0]
    # Kernels that fill the window are no reason not to cure what else takes a tenth of it.
    close = _OF_NOTE if first.cause in _OF_THE_GPU else weighed[0][0] / _CLOSE
    if heaviest > close:
        first = msgspec.structs.replace(first, confidence=min(first.confidence, _UNSURE))
    return [first, *found[1:]]
