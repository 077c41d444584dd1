"""The GPU waits because the host does not launch fast enough.

Host wait without what the loader, a pending launch and synchronisation explain. It is
`launch-bound` when the queue is empty (median launch to start below 20 µs) and half of the kernels
are under 5 µs: the host is slow only in that each kernel is too small to pay for its launch. It is
start-up when most of the wait is calls of a millisecond or more that allocate or load.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent
from ridgeline.records.finding import TraceFinding

CAUSES = ("host-bound", "launch-bound", "host-bound-start-up")
LEADS_FROM = 0.25
_LEAST_SHARE = 0.03
_SMALL_SHARE = 0.5


def _host_us(fact: RankFacts) -> float:
    return fact.host_us


def find(reading: TraceReading) -> list[TraceFinding]:
    """GPU idle for want of a launch."""
    share = reading.share(_host_us)
    if share < _LEAST_SHARE:
        return []
    worst = reading.worst(_host_us)
    start_up = reading.mean(lambda fact: fact.start_up_us)
    if start_up > 0.5 * reading.mean(_host_us):
        return [_start_up(reading, share, worst)]
    launches = worst.launches
    kernels = worst.kernels
    small = kernels.under_5us_share if kernels else 0.0
    empty_queue = bool(launches and launches.queue_empty)
    cause = "launch-bound" if empty_queue and small >= _SMALL_SHARE else "host-bound"
    by = {name: sum(fact.host_wait_by.get(name, 0.0) for fact in reading.facts) for name in _WORDS}
    doing = max(by, key=lambda name: by[name])
    untraced = by["untraced"] > 0.5 * sum(by.values())
    gap = worst.longest_gap
    return [
        reading.finding(
            cause,
            of=_host_us,
            confidence=0.5 if untraced else (0.9 if empty_queue else 0.75),
            summary=f"The GPU waits for the host to launch for {percent(share)} of the window; the "
            f"launching thread is mostly in {_WORDS[doing]}."
            + (" Its queue is empty: every kernel starts as soon as it is asked for."
               if empty_queue else ""),
            evidence={
                "host_wait_us": reading.mean(_host_us),
                "launch_to_start_median_us": launches.delay_us.get("median") if launches else None,
                "kernels_under_5us_share": small,
                "shorter_than_their_launch_share": launches.shorter_than_launch_share
                if launches
                else None,
                "graph_time_share": launches.graph_time_share if launches else None,
                **{f"in_{name}_us": us / len(reading.facts) for name, us in by.items() if us > 0},
            },
            where=[gap.line or gap.call] if gap else [],
            cure="Launch less often: torch.compile, CUDA graphs (mode='reduce-overhead'), fused "
            "optimizers, larger batches; take Python work out of the step."
            if not untraced
            else "Record with record_shapes and with_stack: what the host does in the gaps is not "
            "in this trace.",
        )
    ]  # fmt: skip


_WORDS = {
    "operator": "the dispatch of operators",
    "python": "Python",
    "runtime": "calls of the runtime",
    "allocator": "allocation",
    "untraced": "something that was not traced",
    "launch": "launch calls",
}


def _start_up(reading: TraceReading, share: float, worst: RankFacts) -> TraceFinding:
    return reading.finding(
        "host-bound-start-up",
        of=_host_us,
        confidence=0.85,
        summary=f"{percent(share)} of the window is start-up: the GPU waits while the host "
        f"initialises ({', '.join(worst.start_up_calls[:2])}).",
        evidence={
            "host_wait_us": reading.mean(_host_us),
            "start_up_us": reading.mean(lambda fact: fact.start_up_us),
            "start_up_share": reading.share(lambda fact: fact.start_up_us),
        },
        where=worst.start_up_calls,
        cure="Profile after a few warm-up steps (torch.profiler.schedule(wait, warmup, active)): "
        "this trace says little about a steady step.",
    )
