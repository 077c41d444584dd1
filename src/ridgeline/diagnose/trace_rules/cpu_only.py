"""Nothing ran on a GPU, or nobody recorded it: no share of a GPU's window can be told."""

from __future__ import annotations

from ridgeline.diagnose.trace_reading import TraceReading, time_text
from ridgeline.records.finding import TraceFinding

CAUSES = ("cpu-only",)
LEADS_FROM = 0.0


def find(reading: TraceReading) -> list[TraceFinding]:
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
