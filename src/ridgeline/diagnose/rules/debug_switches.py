"""Switches for finding errors that were left on: anomaly mode, a profiler, determinism."""

from __future__ import annotations

from ridgeline.diagnose.ranking import is_worthwhile
from ridgeline.diagnose.reading import (
    Evidence,
    Reading,
    duration,
    megabytes,
    percent,
    total_calls,
    total_seconds,
    warning,
)
from ridgeline.records import Finding

CAUSES = ("anomaly-mode", "profiler-left-on", "deterministic-algorithms")

_CHECKS = frozenset(f"aten::{name}" for name in ("isnan", "_is_any_true", "any", "isinf"))
_PER_CALL = (3e-6, 45e-6)
"""What a recording profiler adds to one operator: without, and with shapes and stacks."""
_FILLS_MEMORY_BYTES = 32 * 1024
"""Events that are kept, per step, from which a profiler is a leak as well."""
_NODES_PER_CALL = 5e-6
"""Anomaly mode walks the Python stack for every operator that is recorded for backward."""
_UNORDERED = frozenset(
    f"aten::{name}"
    for name in (
        "index_add_", "index_put_", "_index_put_impl_", "scatter_add_", "scatter_add",
        "scatter_reduce", "embedding_dense_backward", "cumsum", "convolution_backward",
    )
)  # fmt: skip
"""Operators that have a faster form whose order of additions varies."""


def find(reading: Reading) -> list[Finding]:
    """Each switch that is on, with what it can be seen to cost."""
    settings = reading.profile.settings
    found: list[Finding] = []
    if settings.anomaly_detection:
        found += _anomaly(reading)
    if settings.autograd_profiler:
        found += _profiler(reading)
    if settings.deterministic:
        found += _deterministic(reading)
    return found


def _anomaly(reading: Reading) -> list[Finding]:
    checks = reading.operators(_CHECKS, phases=("backward",))
    checking = total_seconds(checks)
    recorded = total_calls(reading.operators(phases=("forward",)))
    tracing = min(recorded * _NODES_PER_CALL, reading.gap_seconds("forward"))
    spent = checking + tracing
    waiting = reading.gap_seconds("backward")  # each check asks for its answer
    seen = ""
    evidence: Evidence = {}
    if checks:
        step = duration(reading.step_seconds)
        seen = f": {duration(checking)} of {step} per step in the checks alone"
        evidence = {"check_seconds": checking, "num_checks": total_calls(checks)}
    return reading.finding(
        "anomaly-mode",
        touched_seconds=spent + waiting,
        saves_seconds=(0.8 * spent, spent + 0.8 * waiting),
        confidence=0.95,
        summary=f"Anomaly detection checks every gradient for NaN{seen}.",
        evidence=evidence | {"backward_seconds": reading.phase_seconds("backward")},
        where=[reading.profile.settings.backward_site],
        cure="Remove `torch.autograd.set_detect_anomaly(True)`; turn it on only to find an error.",
        effort="line",
        technique="no-anomaly",
    )


def _profiler(reading: Reading) -> list[Finding]:
    calls = reading.profile.operator_calls
    low, high = (min(calls * each, reading.step_seconds / 2) for each in _PER_CALL)
    growth = reading.profile.memory_growth_bytes_per_step
    where = [reading.profile.settings.backward_site]
    evidence: Evidence = {"operators_per_step": calls, "growth_bytes": int(growth)}
    cure = "Remove the profiler, or give it a schedule that records a few steps and stops."
    found = reading.finding(
        "profiler-left-on",
        touched_seconds=high,
        saves_seconds=(low, high),
        confidence=0.9,
        summary=f"A profiler records each of the {calls:,.0f} operators of a step.",
        evidence=evidence,
        where=where,
        cure=cure,
        effort="line",
        technique="no-profiler",
    )
    if any(is_worthwhile(finding) for finding in found) or growth < _FILLS_MEMORY_BYTES:
        return found
    return warning(
        "profiler-left-on",
        confidence=0.9,
        summary=f"A profiler keeps {megabytes(growth)} of events per step: memory fills up.",
        evidence=evidence,
        where=where,
        cure=cure,
        effort="line",
        technique="no-profiler",
    )


def _deterministic(reading: Reading) -> list[Finding]:
    slower = reading.operators(_UNORDERED)
    if not reading.on_gpu:
        slower = [op for op in slower if op.name != "aten::convolution_backward"]
    seconds = total_seconds(slower)
    return reading.finding(
        "deterministic-algorithms",
        touched_seconds=seconds,
        saves_seconds=(0.1 * seconds, 0.5 * seconds),
        confidence=0.5,
        summary="Deterministic algorithms are on; "
        f"{percent(reading.share(seconds))} of the step is in operators that have faster ones.",
        evidence={"affected_seconds": seconds, "num_calls": total_calls(slower)},
        where=reading.hottest("backward", at_most=1),
        cure="Where bit-equal repeats are not needed, drop "
        "`torch.use_deterministic_algorithms(True)`.",
        effort="flag",
        technique="determinism-off",
    )
