"""The GPU waits because the host does not launch fast enough.

Idle time of the host without its loader, its start and its waits (`sync_bound.py`). It is
`launch-bound` when the queue is empty (median launch to start below 20 µs), half of the kernels are
under 5 µs and the idle time is in short gaps: the host is slow only in that each kernel is too
small to pay for its launch.
"""

from __future__ import annotations

from ridgeline.diagnose.longest_gaps import LongestGap
from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent, time_text
from ridgeline.diagnose.trace_rules.sync_bound import explains_the_host
from ridgeline.records.finding import TraceFinding

CAUSES = ("host-bound", "launch-bound")
LEADS_FROM = 0.25
_BESIDE_DISPATCH = ("python", "untraced")
_LEADS_BESIDE_DISPATCH = 0.10
"""Some dispatch there always is; Python, and what takes longer, can be removed from a step."""
_LEADS_ALONE, _HARDLY = 0.15, 0.25
"""Dispatch that all of the window waits for, where kernels that took no time would save no more
than this part of what a host without it does."""
LEADS_BY = "worth"
_LEAST_SHARE = 0.03
_MOSTLY = 0.5
_SMALL_SHARE = 0.5
_LONG_SHARE = 0.3
_MAYBE_ONCE = 0.55
"""How sure a way to the first kernel is that no step holds: it may not come again."""
_ONE_RANK = 1.5
"""A rank whose host holds so many times the mean is named."""
_PARTS = {
    "operator": "the dispatch of operators",
    "python": "Python",
    "runtime": "calls of the runtime",
    "allocator": "allocation",
    "untraced": "something that was not traced",
}


def _host_us(fact: RankFacts) -> float:
    return sum(fact.idle[part] for part in _PARTS)


def leads_from(finding: TraceFinding) -> float:
    """The weight from which this finding can be what bounds the run."""
    evidence = finding.evidence
    between = float(evidence.get("in_python_us", 0.0)) + float(evidence.get("in_own_code_us", 0.0))
    if "in_operator_us" in evidence:  # where operators are recorded, dispatch is inside of them
        between += float(evidence.get("in_untraced_us", 0.0))
    fetched = float(evidence.get("on_data_from_the_gpu_us", 0.0))
    least = _LEADS_ALONE if "saved_without_gpu_work_us" in evidence else LEADS_FROM
    beside = max(float(evidence["in_long_gaps_us"]), between, fetched)
    mostly = beside >= _MOSTLY * float(evidence["idle_for_the_host_us"])
    return _LEADS_BESIDE_DISPATCH if mostly else least


def find(reading: TraceReading) -> list[TraceFinding]:
    """GPU idle for want of a launch."""
    share = reading.share(_host_us)
    # Of ranks that wait for the one whose host is late, no other's GPU seems to wait for its own.
    held_up = reading.together is not None and (
        reading.saved("host") >= _LEAST_SHARE * reading.window_us
    )
    if (share < _LEAST_SHARE and not held_up) or not share or explains_the_host(reading):
        return []
    worst = reading.worst(_host_us)
    launches, kernels = worst.launches, worst.kernels
    small = kernels.under_5us_share if kernels else 0.0
    by = {name: reading.idle(name) for name in _PARTS}
    doing = max(by, key=lambda name: by[name])
    untraced = by["untraced"] > 0.5 * sum(by.values())
    empty_queue = bool(launches and launches.queue_empty)
    all_small = small >= _SMALL_SHARE and worst.long_gaps_us < _LONG_SHARE * _host_us(worst)
    cause = "launch-bound" if empty_queue and all_small else "host-bound"
    shorter = _without_work_us(reading)
    only_python = doing == "python" and cause == "host-bound"
    edge = worst.edge_gap
    gap = edge if edge and edge.us > 0.3 * _host_us(worst) else worst.longest_gap
    return [
        reading.finding(
            cause,
            of=_host_us,
            worth_us=reading.saved("python") if only_python else reading.saved("host"),
            confidence=min(
                _MAYBE_ONCE if _may_come_once(worst) else 1.0,
                0.5 if untraced else (0.9 if empty_queue else 0.75),
            ),
            summary=f"The GPU waits for the host to launch for {percent(share)} of the window; the "
            f"host is mostly in {_named(doing, worst)}." + _of_one_rank(reading, worst, share)
            + ("" if shorter is None else " It is the host that the window takes as long as.")
            + _at_the_edge(edge, worst) + (
                " The queue is empty: every kernel starts as soon as it is asked for."
                if empty_queue else ""
            ),
            evidence={
                "idle_for_the_host_us": reading.mean(_host_us),
                "in_long_gaps_us": reading.mean(
                    lambda fact: sum(fact.idle_in_long_gaps[part] for part in _BESIDE_DISPATCH)
                ),
                "on_data_from_the_gpu_us": reading.mean(lambda fact: fact.fetched_us) or None,
                "saved_without_gpu_work_us": shorter,
                "launch_to_start_median_us": launches.delay_us.get("median") if launches else None,
                "kernels_under_5us_share": small,
                "shorter_than_their_launch_share": launches.shorter_than_launch_share
                if launches
                else None,
                "graph_time_share": launches.graph_time_share if launches else None,
                **{f"in_{_key(name, worst)}_us": us for name, us in by.items() if us > 0},
            },
            where=[gap.line or gap.call] if gap else [],
            cure=_cure(doing, worst, untraced=untraced),
        )
    ]  # fmt: skip


def _without_work_us(reading: TraceReading) -> float | None:
    """What the window would lose if the GPU took no time, where that is next to nothing.

    Kernels may then fill most of the window, and still it is the host that it takes as long as.
    """
    asked = [fact.saved_without_work_us for fact in reading.facts]
    if reading.together is not None or None in asked:
        return None
    lost = sum(one for one in asked if one is not None) / len(asked)
    return lost if lost < _HARDLY * reading.saved("host") else None


def _may_come_once(fact: RankFacts) -> bool:
    """Is it mostly one stretch at an end of a trace without steps, whose rest kernels fill?"""
    edge = fact.edge_gap
    if edge is None or fact.summary.steps or edge.us < _MOSTLY * _host_us(fact):
        return False
    return fact.summary.compute_us >= _MOSTLY * (fact.window_us - edge.us)


def _of_one_rank(reading: TraceReading, worst: RankFacts, share: float) -> str:
    """Say whose it is where the others stand in collectives meanwhile, not in want of a launch."""
    its = _host_us(worst) / worst.window_us
    if reading.together is None or its < _ONE_RANK * share:
        return ""
    name = next(
        str(one.rank) for one in reading.together.stragglers.ranks if one.file == worst.summary.file
    )
    return f" It is {percent(its)} of rank {name}'s, for which the others wait."


def _at_the_edge(gap: LongestGap | None, fact: RankFacts) -> str:
    """Say how long the GPU is empty before its first event, or after its last."""
    if gap is None or gap.us < 0.1 * fact.window_us:
        return ""
    place = "before its first event" if gap.place == "before" else "after its last event"
    doing = gap.line or gap.call
    return f" The GPU is empty for {time_text(gap.us)} {place}" + (
        f", while the host is in {doing}." if doing else "."
    )


def _key(part: str, fact: RankFacts) -> str:
    """What a part of the host's time is: a program without torch may have no Python."""
    return "own_code" if part == "python" and not fact.seen_by_torch else part


def _named(part: str, fact: RankFacts) -> str:
    return {**_PARTS, "own_code": "code of the program's own"}[_key(part, fact)]


def _cure(doing: str, fact: RankFacts, *, untraced: bool) -> str:
    if untraced:
        return (
            "Record with record_shapes and with_stack: what the host does in the gaps is not in "
            "this trace."
        )
    if _key(doing, fact) == "own_code":
        return (
            "Sample the host (nsys profile --sample=process-tree, perf) to see what it does "
            "between its calls, and take that out of the loop or do it a round ahead."
        )
    if doing == "python":
        return (
            "Take Python work out of the step: prepare it in a worker or a step ahead, or compile "
            "it (torch.compile); record with_stack to see the lines."
        )
    if not fact.seen_by_torch:
        return "Launch less often: CUDA graphs, fewer and larger kernels and copies."
    return (
        "Launch less often: torch.compile, CUDA graphs (mode='reduce-overhead'), fused "
        "optimizers, larger batches."
    )
