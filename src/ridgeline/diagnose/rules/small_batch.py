"""Batches so small that most of the step costs the same whatever their size.

Casting the weights, adding to their gradients, stepping the optimizer and starting operators take
their time once per batch, and a matmul of few rows does not fill the units that compute
it. While memory is mostly empty, more samples per batch share all this.

Which operators touch only weights is told by their shapes: the optimizer's operators name the
shapes of all weights.
"""

from __future__ import annotations

from ridgeline.diagnose.reading import DENSE_MATMULS, Evidence, Reading, is_on, percent
from ridgeline.records import Finding, Operator

CAUSES = ("small-batch",)

_PHASES = ("forward", "backward", "other")
_EMPTY = 0.4
"""Memory is mostly empty below this share of it."""
_LEAST_FIXED = {True: 0.3, False: 0.6}
"""Share of the step that is fixed, when micro-batches are accumulated, and when they are not: a
larger global batch trains differently, so more must speak for it."""
_TIMES = 4
"""The gain is that of a batch this many times as large."""
_REACHED = 0.6
"""Share of the peak that large matmuls reach."""


def find(reading: Reading) -> list[Finding]:
    """Time that does not depend on the size of the batch, and room for a larger one."""
    profile = reading.profile
    if reading.model is None or profile.device_memory_bytes <= 0 or profile.kind != "training":
        return []
    if profile.peak_memory_bytes > _EMPTY * profile.device_memory_bytes:
        return []
    accumulates = profile.settings.forwards_per_step >= 2
    weights, matmuls, starting = _fixed_seconds(reading)
    fixed = weights + matmuls + starting
    if not accumulates and all(o.fused or not o.supports_fused for o in profile.optimizers):
        fixed += reading.phase_seconds("optimizer")  # one that could be faster is another cause
    if reading.share(fixed) < _LEAST_FIXED[accumulates]:
        return []
    saved = (1 - 1 / _TIMES) * fixed
    evidence: Evidence = {
        "weights_only_seconds": weights,
        "few_rows_seconds": matmuls,
        "starting_operators_seconds": starting,
        "forwards_per_step": profile.settings.forwards_per_step,
        "peak_memory_bytes": profile.peak_memory_bytes,
        "device_memory_bytes": profile.device_memory_bytes,
    }
    samples = _samples_per_forward(reading)
    if samples is not None:
        evidence["samples_per_forward"] = samples
    return reading.finding(
        "small-batch",
        touched_seconds=fixed,
        saves_seconds=(0.4 * saved, saved),
        confidence=0.75 if accumulates else 0.5,
        summary=f"{percent(reading.share(fixed))} of the step would cost the same for a batch "
        f"several times as large as {samples or 'now'}{' samples' if samples else ''}.",
        evidence=evidence,
        where=[reading.model.forward_site],
        cure="Take larger micro-batches and accumulate fewer of them; the global batch stays "
        "the same."
        if accumulates
        else "Take larger batches, and adapt the learning rate to them.",
        effort="flag" if accumulates else "design",
        technique="micro-batch" if accumulates else None,
    )


def _samples_per_forward(reading: Reading) -> int | None:
    profile = reading.profile
    if profile.samples_per_second is None or profile.settings.forwards_per_step <= 0:
        return None
    samples = profile.samples_per_second * profile.step_seconds.mean
    return round(samples / profile.settings.forwards_per_step)


def _fixed_seconds(reading: Reading) -> tuple[float, float, float]:
    """Seconds in operators on weights alone, in starving matmuls, and in starting operators."""
    operators = reading.operators(phases=_PHASES)
    small = reading.small_operators(*_PHASES)
    samples = _samples_per_forward(reading)
    # What may be a batch is not taken for a weight.
    weight_shapes = {shape for shape in reading.weight_shapes() if samples not in shape}
    weights = sum(
        reading.believed_seconds(op)
        for op in operators
        if op not in small and op.bound == "memory" and is_on(op, weight_shapes)
    )
    matmuls = sum(
        _starving_seconds(reading, op)
        for op in operators
        if op not in small and op.name in DENSE_MATMULS
    )
    starting = sum(map(reading.believed_seconds, small)) + reading.around_seconds(
        operators, "forward", "backward"
    )
    return weights, matmuls, starting


def _starving_seconds(reading: Reading, op: Operator) -> float:
    """What a matmul with few rows takes beyond what the same FLOPs take in a large one."""
    peak = reading.peak(op.dtype)
    samples = _samples_per_forward(reading)
    sizes = [size for shape in op.input_shapes() if len(shape) == 2 for size in shape]
    if not peak or samples not in sizes or 4 * samples > max(sizes):
        return 0.0
    return max(0.0, reading.believed_seconds(op) - op.flops / (_REACHED * peak))
