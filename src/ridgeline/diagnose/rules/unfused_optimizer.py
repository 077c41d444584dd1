"""The optimizer walks over its tensors operation by operation where one kernel could do it.

Each elementary operation reads and writes whole tensors: the ten or so of Adam move about three
times the bytes that its mathematics needs, which is weight, gradient and state read once, and
weight and state written once.
"""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, percent, total_calls, total_seconds
from ridgeline.records import Finding, Operator, OptimizerFacts

CAUSES = ("unfused-optimizer",)

_USUAL_RATIO = 0.4
"""Fused over unfused bytes where the operators were not seen."""
_GROUPED_RATIO = 0.6
"""The same for the grouped (`foreach`) form, whose kernels keep more of their data in cache."""


def find(reading: Reading) -> list[Finding]:
    """An optimizer that has a fused form and does not use it."""
    optimizers = [
        o
        for o in reading.profile.optimizers
        if o.supports_fused and not o.fused and o.steps_per_step > 0
    ]
    seconds = reading.phase_seconds("optimizer")
    if not optimizers or seconds <= 0:
        return []
    looked = bool(reading.operators())
    operators = reading.operators(phases=("optimizer",))
    least = sum(_least_bytes(reading, o) for o in optimizers)
    moved = sum(op.bytes for op in operators)
    ratio = min(1.0, least / moved) if moved else _USUAL_RATIO
    if not looked or not _is_loop(operators):
        ratio = max(ratio, _GROUPED_RATIO)
    in_bytes = total_seconds(op for op in operators if op.bound != "overhead")
    busy = min(seconds, in_bytes) if looked else seconds
    around = seconds - busy  # dispatch of many small operators: one kernel has none
    saved = (1 - ratio) * busy + 0.9 * around
    first = optimizers[0]
    calls = total_calls(operators)
    counted = {"operators_per_step": calls, "moved_bytes": int(moved)} if looked else {}
    return reading.finding(
        "unfused-optimizer",
        touched_seconds=seconds,
        saves_seconds=(0.6 * saved, saved),
        confidence=0.9 if looked else 0.6,
        summary=f"{first.name} takes {duration(seconds)} per step "
        f"({percent(reading.share(seconds))}){f' in {calls:,.0f} operators' * looked}; "
        "a fused step is one operator.",
        evidence={
            "optimizer_seconds": seconds,
            **counted,
            "least_bytes": int(least),
            "num_parameter_tensors": first.num_parameter_tensors,
        },
        where=[o.site or o.step_site for o in optimizers],
        cure=f"Construct it with `fused=True`: `{first.name}(…, fused=True)`.",
        effort="flag",
        technique="fused-optimizer",
    )


def _least_bytes(reading: Reading, optimizer: OptimizerFacts) -> float:
    """Weights read and written, gradients read, state read and written, each once."""
    element = 4.0
    model = reading.model
    if model is not None and model.num_parameters:
        element = model.parameter_bytes / model.num_parameters
    weights = optimizer.num_parameters * element
    return optimizer.steps_per_step * (3 * weights + 2 * optimizer.state_bytes)


def _is_loop(operators: list[Operator]) -> bool:
    """Is it a Python loop over tensors, and not the grouped form that is a GPU's default?"""
    return not any("_foreach_" in op.name for op in operators)
