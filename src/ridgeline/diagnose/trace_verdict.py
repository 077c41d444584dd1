"""What bounds a run, from its traces alone: every rule over every rank, the first cause first.

Order: a cause may bound the run when its weight is at least its rule's `LEADS_FROM`. The weight is
the geometric mean of what the cause takes of the window (`share`) and what the window would lose
without it (`worth`): a cause that is seen everywhere but whose cure brings nothing does not lead,
and neither does one whose cure brings much by way of something else. Causes whose cure a trace
cannot try weigh their share. The heaviest comes first; idle time that nothing explains comes after
what is explained. Of ranks that wait for each other a cure is worth what the rank gains that gains
least: what the late one alone waits for is `rank-skew`, what all of them wait for is the cause.
Where none leads, the run is bound by its kernels if they fill half of the window; and where they
fill most of it, they come before causes that are worth no more than better kernels. When the second
weighs almost as much as the first, the first is less sure (where the second could not lead, when it
weighs more); so is another cause than the kernels where they fill most of the window: its cure is
worth having, and what bounds the run is arguable.

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
_MOST = 0.75
"""Another cause that leads beside kernels which fill more than this is arguable."""
_PERHAPS = 0.4
"""The part of their time that kernels may lose for all that is known of them."""
_ARGUABLE, _HEAVIER = 0.55, 0.7
"""What is stated at most where two causes are close, and where one that could not bound the run by
itself weighs more than the one that does."""
_BETWEEN_RANKS, _SENDING = "rank-skew", "communication-bound"
_AS_MUCH = 1.15
_NOT_SHOWN = "device-stall"
"""Idle time that the trace does not explain: about as much of it as of the first cause makes that a
guess."""
_INSTEAD = ("cpu-only", "hardly-any-gpu-work", "empty-window")
"""Where one of these holds the window is not one that shares of it mean anything for."""
_UNEXPLAINED = ("unexplained-idle",)
_UNEVEN = "uneven-kernels"
"""Kernels that are slower than they are at other times are seen to be, not reckoned."""
_STARTING = "host-bound-start-up"
_SMALL, _MANY_SMALL = "small-kernels", 0.15
_TWICE = 2.0
"""What weighs so many times what could bound the run by itself comes first, as a guess."""
_FAR_MORE = 3.0
"""So many times what is explained comes first, though nothing explains it."""
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
    skew = next((one.worth_us for _, one in leading if one.cause == _BETWEEN_RANKS), 0.0)
    rest = max((one.worth_us for _, one in leading if one.cause not in _OF_THE_GPU), default=0.0)
    filled = reading.share(lambda fact: fact.summary.compute_us) > _MOST
    most = rest if filled else math.nextafter(_AS_MUCH * rest, math.inf)
    uneven = (one.worth_us for _, one in leading if one.cause == _UNEVEN)
    most = max(most, _CLOSE * max(uneven, default=0.0))
    explained = max((weight for weight, one in leading
                     if one.cause not in (*_UNEXPLAINED, *_OF_THE_GPU)), default=0.0)  # fmt: skip
    leading.sort(
        key=lambda one: (_is_skew(one[1], skew), *_importance(one, most, _FAR_MORE * explained))
    )
    others.sort(key=lambda one: (one[1].cause in _NO_RIVALS, -one[0]))
    _put_the_heavier_first(leading, others)
    return _with_doubt(leading, others, reading)


def _put_the_heavier_first(
    leading: list[tuple[float, TraceFinding]], others: list[tuple[float, TraceFinding]]
) -> None:
    """Let a cause lead that could not by itself, where it weighs far more than the one that does.

    A host that costs a quarter of the run is not second to messages that cost a tenth.
    """
    if not leading or not others or leading[0][1].cause in (*_INSTEAD, *_OF_THE_GPU):
        return
    weight, heaviest = others[0]
    if heaviest.cause not in (*_NO_RIVALS, *_UNEXPLAINED, _NOT_SHOWN) and (
        weight > _TWICE * leading[0][0]
    ):
        others.pop(0)
        leading.insert(0, (weight, _at_most(heaviest, _ARGUABLE)))


def _weight(finding: TraceFinding, reading: TraceReading, by: str) -> float:
    """How much of the window hangs on a finding, from 0 to 1."""
    if by == "share":
        return finding.share
    worth = finding.worth_us / reading.window_us if reading.window_us else 0.0
    share = finding.share
    if reading.together is not None and reading.together.joined is not None:
        share = reading.widest[finding.cause]  # on the others it hides behind their waiting
    return math.sqrt(max(0.0, share * worth))


def _is_skew(finding: TraceFinding, skew_us: float) -> bool:
    """Is it why the late rank is late, and worth no more than that this one is?"""
    own = finding.cause not in (_BETWEEN_RANKS, _SENDING, *_INSTEAD, *_OF_THE_GPU)
    return own and skew_us > 0 and finding.worth_us <= _AS_MUCH * skew_us


def _importance(
    one: tuple[float, TraceFinding], kernels_us: float, explained: float
) -> tuple[bool, bool, bool, float]:
    """Sort causes, the first one first; kernels whose cure is worth less than that come last.

    Idle time that nothing explains comes last, too, unless it weighs more than `explained`.
    """
    weight, finding = one
    return (
        finding.cause not in _INSTEAD,
        finding.cause in _UNEXPLAINED and weight < explained,
        finding.cause in _OF_THE_GPU and finding.worth_us < kernels_us,
        -weight,
    )


def _with_doubt(
    leading: list[tuple[float, TraceFinding]],
    others: list[tuple[float, TraceFinding]],
    reading: TraceReading,
) -> list[TraceFinding]:
    weighed = leading + others
    found = [finding for _, finding in weighed]
    if found and found[0].cause not in (*_INSTEAD, _STARTING) and _mostly_beside(reading):
        found[0] = _at_most(found[0], _ARGUABLE)
    if len(found) < 2 or found[0].cause in _INSTEAD:
        return found
    first, weight = found[0], weighed[0][0]
    rivals = [one for one in weighed[1:] if one[1].cause not in _NO_RIVALS]
    most = 1.0
    if first.cause in _OF_THE_GPU or not leading:
        # Kernels that fill the window are no reason not to cure what else takes a tenth of it.
        close = _OF_NOTE if leading else weight / _CLOSE
        if any(other > close for other, _ in rivals) or _many_small(found):
            most = _ARGUABLE
    else:
        if any(other > weight for other, _ in rivals):  # though it could not bound the run alone
            most = _HEAVIER
        if any(other > weight / _CLOSE for other, one in rivals if (other, one) in leading):
            most = _ARGUABLE
    if _beside_kernels(weighed, reading) or any(
        one.cause == _NOT_SHOWN and one.share > first.share / _CLOSE for _, one in weighed[1:]
    ):
        most = _ARGUABLE
    return [_at_most(first, most), *found[1:]]


def _at_most(finding: TraceFinding, most: float) -> TraceFinding:
    return msgspec.structs.replace(finding, confidence=min(finding.confidence, most))


def _many_small(found: list[TraceFinding]) -> bool:
    """Do small kernels take so much that fewer ones may be what saves most?"""
    return any(one.cause == _SMALL and one.share >= _MANY_SMALL for one in found)


def _mostly_beside(reading: TraceReading) -> bool:
    """Was more recorded of a program without steps than the window that is judged?"""
    return any(fact.beside_us > fact.window_us for fact in reading.facts)


def _beside_kernels(weighed: list[tuple[float, TraceFinding]], reading: TraceReading) -> bool:
    """Is the first finding another cause where the kernels may well be worth as much?

    Where they fill most of the window, or could lose as much of the time of which no shape tells
    how far it is from a roof.
    """
    first = weighed[0][1]
    if first.cause in _OF_THE_GPU:
        return False
    kernels = max((one.share for _, one in weighed if one.cause in _OF_THE_GPU), default=0.0)
    time_us = reading.mean(lambda fact: sum(fact.below_us.values()))
    untold_us = time_us - reading.mean(lambda fact: fact.told_by_shapes_us)
    return kernels > _MOST or 0 < first.worth_us < _PERHAPS * untold_us
