"""A window with nothing or almost nothing on a GPU: shares of it say nothing about the work.

`cpu-only`: nothing ran on a GPU, or nobody recorded it; sure only where nothing in the trace speaks
of a GPU. `empty-window`: nothing was recorded at all; or kernels were launched and none is in the
trace; or one gap is most of the window, and the work that ended it had been launched long before or
the host was blocked in a call all the while: the profiler's own start, a graph that was replayed
once, a wait for another process.
`hardly-any-gpu-work`: the GPU worked for a ten-thousandth of the recorded time, or it is an event
or two.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_reading import TraceReading, percent, time_text
from ridgeline.records.finding import TraceFinding
from ridgeline.trace.recorded import Recorded, joined_records

CAUSES = ("empty-window", "hardly-any-gpu-work", "cpu-only")
LEADS_FROM = 0.0
LEADS_BY = "share"

_MOST = 0.8
_HARDLY = 1e-4
_FEW, _FEW_US = 2, 10.0
"""So many events of the GPU, shorter than that together, are no run."""
_SURE, _UNSURE, _GUESS = 0.9, 0.5, 0.4
"""Confidence without any sign of a GPU, with one, and where its work is known to be missing."""
_RECORD_ALL = (
    "Stop the profiler before the process ends, and record with ProfilerActivity.CUDA (or the "
    "activity of your accelerator)."
)
_RECORD_STEPS = "Record several steps of the real work: this profiler was stopped before any began."
_LOOK = "See what these events are; the host's side is in `ridgeline trace operators`."
_RECORD = (
    "If a GPU was used, record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]; if "
    "none was, move model and data to one."
)


def find(reading: TraceReading) -> list[TraceFinding]:
    """Find that no rank used a GPU, or that one hardly did."""
    return [*_empty(reading), *_cpu_only(reading)]


def _empty(reading: TraceReading) -> list[TraceFinding]:
    """One gap, or no work to speak of."""
    if len(reading.facts) != 1:
        return []
    fact = reading.facts[0]
    busy, span = fact.summary.busy_us, max(fact.host_span_us, fact.window_us)
    few = fact.summary.gpu_events <= _FEW and busy < _FEW_US
    if few or busy < _HARDLY * span:
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
    """All ranks without a GPU event: what else they say decides what that means."""
    if reading.facts or not reading.all_facts:
        return []
    signs = joined_records(fact.recorded for fact in reading.all_facts if fact.recorded)
    span = max(fact.host_span_us for fact in reading.all_facts)
    evidence: dict[str, float | int | str] = {
        "host_span_us": round(span, 1),
        "launch_calls": signs.launch_calls,
        "gpu_calls": signs.gpu_calls,
        "gpu_operators": signs.gpu_operators,
        "gpu_allocations": signs.gpu_allocations,
        "gpus_in_header": len(signs.gpus),
        "events_skipped": sum(signs.skipped.values()),
    }
    used = (signs.launch_calls, signs.gpu_records, signs.gpu_operators, signs.gpu_allocations)
    missing = any(used) or (signs.cut and bool(signs.gpus or signs.gpu_calls))
    nothing = span <= 0.0 and not signs.skipped
    confidence, summary, cure = _explained(signs, time_text(span), missing=missing, nothing=nothing)
    return [
        TraceFinding(
            cause="empty-window" if missing or nothing else "cpu-only",
            share=1.0,
            worth_us=0.0,
            confidence=confidence,
            summary=summary,
            evidence={
                key: value for key, value in evidence.items() if value or key == "gpu_events"
            },
            cure=cure,
        )
    ]


def _explained(
    signs: Recorded, span: str, *, missing: bool, nothing: bool
) -> tuple[float, str, str]:
    """How sure, what is said, and what to do about a trace without GPU events."""
    said, sign = f"No GPU event in {span} of trace", _sign(signs)
    if nothing:
        why = f", though {sign}" if sign else ""
        return _GUESS, f"Nothing was recorded, neither of a host nor of a GPU{why}.", _RECORD_STEPS
    if missing:
        why = "the GPU was not recorded, or the file was cut"
        if signs.cut:
            why = "the file ends early, before its kernels"
        return _GUESS, f"{said}, though {sign}: {why}.", _RECORD_ALL
    if signs.skipped:
        largest = max(signs.skipped, key=lambda name: signs.skipped[name])
        said = (
            f"{said} that is known, but {sum(signs.skipped.values()):,} events were skipped, most "
            f"of category {largest!r}: perhaps an accelerator's work."
        )
        return _GUESS, said, _LOOK
    if signs.record_gpu and not signs.gpu_calls:
        said = f"{said}, nor a call of its runtime: no GPU was used, or none was looked at."
        return _UNSURE, said, f"If a GPU was used, {signs.record_gpu}."
    if sign:
        said = f"{said}, but {sign}: it was recorded without the GPU, or nothing ran there then."
        return _UNSURE, said, _RECORD
    return _SURE, f"{said}, and no sign of a GPU: the work ran on the CPU.", _RECORD


def _sign(signs: Recorded) -> str:
    """The clearest sign of a GPU, in words; empty without any."""
    if signs.launch_calls:
        return f"the host launches {signs.launch_calls:,} kernels"
    if signs.gpu_records:
        return "there are records of waits for a GPU"
    if signs.gpu_operators:
        return f"{signs.gpu_operators:,} of its operators are of a GPU's library"
    if signs.gpu_allocations:
        return f"{signs.gpu_allocations:,} of its allocations are of a GPU's memory"
    if signs.gpus:
        return f"the header lists {len(signs.gpus)} × {signs.gpus[0]}"
    if signs.gpu_calls:
        return "the host calls a GPU's runtime"
    if signs.gpu_backend:
        return f"its processes are joined by {signs.gpu_backend}, which joins GPUs alone"
    return "the file ends early" if signs.cut else ""
