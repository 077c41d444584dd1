"""A window with nothing or almost nothing on a GPU: shares of it say nothing about the work.

`cpu-only`: nothing ran on a GPU, or nobody recorded it. `empty-window`: one gap is most of the
window, and the work that ended it had been launched long before or the host was blocked in a call
all the while: the profiler's own start, a graph that was replayed once, a wait for another process.
`hardly-any-gpu-work`: the GPU worked for a thousandth of the recorded time.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_reading import TraceReading, percent, time_text
from ridgeline.records.finding import TraceFinding

CAUSES = ("empty-window", "hardly-any-gpu-work", "cpu-only")
LEADS_FROM = 0.0
LEADS_BY = "share"

_MOST = 0.8
_HARDLY = 1e-4


def find(reading: TraceReading) -> list[TraceFinding]:
    """Find that no rank used a GPU, or that one hardly did."""
    return [*_empty(reading), *_cpu_only(reading)]


def _empty(reading: TraceReading) -> list[TraceFinding]:
    """One gap, or no work to speak of."""
    if len(reading.facts) != 1:
        return []
    fact = reading.facts[0]
    busy, span = fact.summary.busy_us, max(fact.host_span_us, fact.window_us)
    if busy < _HARDLY * span:
        return [
            TraceFinding(
                cause="hardly-any-gpu-work",
                share=1 - busy / span,
                worth_us=0.0,
                confidence=0.8,
                summary=f"The GPU worked for {time_text(busy)} of {time_text(span)} that were "
                f"recorded ({fact.summary.gpu_events} events): too little to judge a run by.",
                evidence={
                    "busy_us": round(busy, 3),
                    "host_span_us": round(span, 1),
                    "gpu_events": fact.summary.gpu_events,
                },
                cure="Record several steps of the real work, after warm-up.",
            )
        ]
    gap = fact.longest_gap
    if gap is None or not gap.pending or gap.us < _MOST * fact.window_us:
        return []
    graphs = fact.launches.graph_launches if fact.launches else 0
    return [
        reading.finding(
            "empty-window",
            of=lambda one: one.longest_gap.us if one.longest_gap else 0.0,
            worth_us=0.0,
            confidence=0.75,
            summary=f"One gap of {time_text(gap.us)} is {percent(gap.us / fact.window_us)} of the "
            "window, with its work already launched; outside of it the GPU is busy for "
            f"{percent(busy / max(fact.window_us - gap.us, 1e-9))}.",
            evidence={
                "gap_us": gap.us,
                "busy_us": busy,
                "busy_share_outside_the_gap": busy / max(fact.window_us - gap.us, 1e-9),
                "graph_launches": graphs,
                "longest_wait_of_the_host": fact.sync_points[0].call if fact.sync_points else None,
                "longest_wait_us": fact.sync_points[0].longest_us if fact.sync_points else None,
            },
            cure="Record several steps in a row, after warm-up: this window holds one stall (the "
            "profiler's start, another process, a request that had not come) and little work.",
        )
    ]


def _cpu_only(reading: TraceReading) -> list[TraceFinding]:
    """All ranks without a GPU event."""
    if reading.facts or not reading.all_facts:
        return []
    span = max(fact.host_span_us for fact in reading.all_facts)
    return [
        TraceFinding(
            cause="cpu-only",
            share=1.0,
            worth_us=0.0,
            confidence=0.95,
            summary=f"No GPU event in {time_text(span)} of trace: the work ran on the CPU, or the "
            "profiler did not record the GPU.",
            evidence={"gpu_events": 0, "host_span_us": round(span, 1)},
            cure="If a GPU was used, record with activities=[ProfilerActivity.CPU, "
            "ProfilerActivity.CUDA]; if none was, move model and data to one.",
        )
    ]
