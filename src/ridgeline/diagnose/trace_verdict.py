"""What bounds a run, from its traces alone: every rule over every rank, the first cause first.

Order: a cause that takes at least its rule's `LEADS_FROM` of the window can bound the run; of
those the largest comes first, causes between ranks before what a rank shows by itself. Waiting for
the host is one wait with several causes: when one of them may lead, the largest of them does, so
that a small cause does not stand before a larger one only because it is more certain. Where none
leads, the run is bound by its arithmetic if that fills half of the window. What else was found
follows by size. When the second is almost as large as the first, the first is less sure.

    trace_verdict([trace])                    one trace or all ranks of a job
    verdict_of(facts)                         the same from facts gathered rank by rank in workers
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ridgeline.diagnose.trace_facts import RankFacts, trace_facts
from ridgeline.diagnose.trace_reading import TraceReading
from ridgeline.diagnose.trace_rules import all_trace_rules
from ridgeline.records.finding import TraceFinding
from ridgeline.trace.columns import Trace

_CLOSE = 1.3
"""A second cause within this factor of the first makes the first a guess."""
_UNSURE = 0.55
_BETWEEN_RANKS = ("rank-skew",)
_OF_THE_HOST = ("input-bound", "host-bound", "launch-bound", "host-bound-start-up", "sync-bound")
"""Parts of host wait; none counts a microsecond that another one does."""
_INSTEAD = ("cpu-only", "hardly-any-gpu-work", "empty-window")
"""Where one of these holds the window is not one that shares of it mean anything for."""
_USEFUL = "compute-bound"
_NO_RIVALS = (_USEFUL, "no-tensor-cores", "small-kernels", "unknown-kernels", "not-bucketed")
"""They hold beside another cause and do not contradict it."""


def trace_verdict(traces: Sequence[Trace], window: str = "trace") -> list[TraceFinding]:
    """Findings of one job, the cause that bounds it first; `traces` are its ranks."""
    return verdict_of([fact for trace in traces for fact in trace_facts(trace, window)])


def verdict_of(facts: Sequence[RankFacts]) -> list[TraceFinding]:
    """The same from facts."""
    reading = TraceReading(facts)
    leading: list[TraceFinding] = []
    others: list[TraceFinding] = []
    for rule in all_trace_rules().values():
        for finding in rule.find(reading):
            (leading if finding.share >= rule.LEADS_FROM else others).append(finding)
    host = max((one.share for one in leading if one.cause in _OF_THE_HOST), default=None)
    for finding in list(others):
        if host is not None and finding.cause in _OF_THE_HOST and finding.share > host:
            others.remove(finding)
            leading.append(finding)
    leading.sort(key=_importance)
    others.sort(key=lambda one: (one.cause in _NO_RIVALS, _importance(one)))
    return _with_doubt(leading + others)


def _importance(finding: TraceFinding) -> tuple[bool, bool, bool, float]:
    return (
        finding.cause not in _INSTEAD,
        finding.cause not in _BETWEEN_RANKS,
        finding.cause == _USEFUL,
        -finding.share,
    )


def _with_doubt(found: list[TraceFinding]) -> list[TraceFinding]:
    if len(found) < 2 or found[0].cause in (*_INSTEAD, _USEFUL):
        return found
    first, rest = found[0], [one for one in found[1:] if one.cause not in _NO_RIVALS]
    if rest and rest[0].share * _CLOSE > first.share:
        first = msgspec.structs.replace(first, confidence=min(first.confidence, _UNSURE))
    return [first, *found[1:]]
