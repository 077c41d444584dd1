"""What the traces of a job show, beyond the causes that they were found to have."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.diagnose.checklist.evidence import (
    Answer,
    Evidence,
    OfTrace,
    done,
    done_if,
    not_applicable,
)

_HARDLY = 0.02
"""Share of the window below which a wait is nothing."""


def _profiled(evidence: Evidence) -> Answer | None:
    window = sum(fact.window_us for fact in evidence.facts)
    if window:
        shown = quantity.shown("us", window)
        return done(f"a trace of {shown} on {len(evidence.facts)} GPUs")
    host = max((fact.host_span_us for fact in evidence.facts), default=0.0)
    if not host:
        return None
    return done(f"a trace of {quantity.shown('us', host)} of the host, without GPU work")


def _limit_known(evidence: Evidence) -> Answer | None:
    first = next(iter(evidence.verdict.values()), None)
    return None if first is None else done(f"{first.cause}: {first.summary}")


def _utilisation(evidence: Evidence) -> Answer | None:
    known = [fact.summary.flops_utilization for fact in evidence.facts]
    shares = [share for share in known if share is not None]
    return done(f"{quantity.percent(max(shares))} of the 16-bit peak") if shares else None


def _loader(evidence: Evidence) -> Answer | None:
    if not any(fact.loader_workers is not None for fact in evidence.facts):
        return None
    share = _share(evidence, [fact.idle["loader"] for fact in evidence.facts])
    if share is None or share >= _HARDLY:
        return None
    return done(f"the GPU waits {quantity.percent(share)} of the window for a loader")


def _copies(evidence: Evidence) -> Answer | None:
    if not any(fact.copies_us for fact in evidence.facts):
        return None
    share = _share(evidence, [fact.link_us + fact.idle["copy"] for fact in evidence.facts])
    if share is None or share >= _HARDLY:
        return None
    return done(f"{quantity.percent(share)} of the window is copies that nothing runs beside")


def _overlap(evidence: Evidence) -> Answer | None:
    share = _share(evidence, [fact.summary.communication_exposed_us for fact in evidence.facts])
    if share is None:
        return None
    if not any(fact.summary.communication_us for fact in evidence.facts):
        return not_applicable("the trace has no collectives")
    return done_if(share < 0.1, f"{quantity.percent(share)} of the window is exposed communication")


def _graphs(evidence: Evidence) -> Answer | None:
    fed = [fact.launches for fact in evidence.facts if fact.launches is not None]
    if not fed:
        return None
    launched = sum(one.graph_launches for one in fed)
    if launched:
        return done(f"{launched} graph launches")
    if not any(one.queue_empty for one in fed):
        return not_applicable("no graph is launched, and the GPU does not wait for launches")
    return None


def _share(evidence: Evidence, parts_us: list[float]) -> float | None:
    window = sum(fact.window_us for fact in evidence.facts)
    return sum(parts_us) / window if window else None


OF_TRACE: dict[str, OfTrace] = {
    "profiled": _profiled,
    "limit-known": _limit_known,
    "utilisation-known": _utilisation,
    "loader-workers": _loader,
    "non-blocking-copies": _copies,
    "overlap": _overlap,
    "cuda-graphs": _graphs,
}
