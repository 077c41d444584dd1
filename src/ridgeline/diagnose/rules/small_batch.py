"""Batches so small that most of the step costs the same whatever their size.

Casting the weights, adding to their gradients, stepping the optimizer and starting operators take
their time once per batch, and a matrix product of few rows does not fill the units that compute
it. While memory is mostly empty, more samples per batch share all this.

Which operators touch only weights is told by their shapes: the optimizer's operators name the
shapes of all weights.
"""

from __future__ import annotations

from ridgeline.diagnose.kinds import DENSE_MATMULS, shapes_of
from ridgeline.diagnose.reading import Evidence, Reading, percent, total_calls, total_seconds
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
"""Of the peak, large products reach so much."""
_PER_OPERATOR = 15.0
"""Python and dispatch around one operator, in bare dispatches."""


def find(reading: Reading) -> list[Finding]:
    """Time that does not depend on the size of the batch, and room for a larger one."""
    profile = reading.profile
    if reading.model is None or profile.device_memory_bytes <= 0 or profile.kind != "training":
        return []
    if profile.peak_memory_bytes > _EMPTY * profile.device_memory_bytes:
        return []
    accumulates = profile.settings.forwards_per_step >= 2
    weights, products, starting = _fixed_seconds(reading)
    fixed = weights + products + starting
    if not accumulates:
        fixed += reading.phase_seconds("optimizer")
    if reading.share(fixed) < _LEAST_FIXED[accumulates]:
        return []
    saved = (1 - 1 / _TIMES) * fixed
    evidence: Evidence = {
        "weights_only_seconds": weights,
        "few_rows_seconds": products,
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
    )


def _samples_per_forward(reading: Reading) -> int | None:
    profile = reading.profile
    if profile.samples_per_second is None or profile.settings.forwards_per_step <= 0:
        return None
    samples = profile.samples_per_second * profile.step_seconds.mean
    return round(samples / profile.settings.forwards_per_step)


def _fixed_seconds(reading: Reading) -> tuple[float, float, float]:
    """Seconds in operators on weights alone, in starving products, and in starting operators."""
    operators = reading.operators(phases=_PHASES)
    samples = _samples_per_forward(reading)
    weight_shapes = {
        shape
        for op in reading.operators(phases=("optimizer",))
        for shape in shapes_of(op)
        if samples not in shape  # what may be a batch is not taken for a weight
    }
    weights = total_seconds(
        op for op in operators if op.bound == "memory" and _is_on_weights(op, weight_shapes)
    )
    products = sum(_starving_seconds(reading, op) for op in operators if op.name in DENSE_MATMULS)
    small = [op for op in operators if op.bound == "overhead"]
    dispatch = reading.ceilings.dispatch_seconds if reading.ceilings is not None else 1e-6
    around = min(
        reading.gap_seconds("forward", "backward"),
        _PER_OPERATOR * dispatch * total_calls(operators),
    )
    return weights, products, total_seconds(small) + around


def _is_on_weights(op: Operator, weight_shapes: set[tuple[int, ...]]) -> bool:
    shapes = shapes_of(op)
    return bool(shapes) and all(
        shape in weight_shapes or shape[::-1] in weight_shapes for shape in shapes
    )


def _starving_seconds(reading: Reading, op: Operator) -> float:
    """What a product with few rows takes beyond what the same FLOPs take in a large one."""
    peak = reading.peak(op.dtype)
    samples = _samples_per_forward(reading)
    sizes = [size for shape in shapes_of(op) if len(shape) == 2 for size in shape]
    if not peak or op.bound == "overhead" or samples not in sizes or 4 * samples > max(sizes):
        return 0.0
    return max(0.0, op.seconds - op.flops / (_REACHED * peak))
