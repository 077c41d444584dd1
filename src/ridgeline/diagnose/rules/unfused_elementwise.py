"""Chains of pointwise operators that each read and write whole tensors.

A compiler runs a chain in one loop, which reads its inputs and writes its result once.
Which operators follow each other is not recorded, but how many of a size there are is. Between
two matmuls (or normalisations, or attentions) of a size lies at most one chain, so that
of n pointwise operators of a size, about as many loops stay as there are such users of tensors
of the size, and the rest could go.
"""

from __future__ import annotations

from collections import defaultdict

from ridgeline.diagnose.reading import (
    Reading,
    is_pointwise,
    is_reduction,
    largest_input,
    percent,
    total_calls,
    total_seconds,
)
from ridgeline.records import Finding, Operator

CAUSES = ("unfused-elementwise",)

_SAVED = (0.25, 0.7)
"""Shares of the time of operators that are fused away: the remaining loop does their arithmetic."""


def find(reading: Reading) -> list[Finding]:
    """Pointwise operators beyond one per user of a size, in forward and in backward."""
    if reading.compiled or reading.profile.graph_breaks:
        return []
    chained, calls = 0.0, 0.0
    pointwise_seconds = 0.0
    for phases in (("forward", "other"), ("backward",)):
        operators = [op for op in reading.operators(phases=phases) if op.bound != "overhead"]
        pointwise_seconds += total_seconds(op for op in operators if is_pointwise(op))
        seconds, removed = _beyond_one_loop(reading, operators)
        chained, calls = chained + seconds, calls + removed
    if chained <= 0:
        return []
    return reading.finding(
        "unfused-elementwise",
        touched_seconds=pointwise_seconds,
        saves_seconds=(_SAVED[0] * chained, _SAVED[1] * chained),
        confidence=0.5,
        summary=f"{percent(reading.share(pointwise_seconds))} of the step is pointwise, and "
        f"about {calls:.0f} of these operators only pass a tensor on to the next.",
        evidence={
            "pointwise_seconds": pointwise_seconds,
            "chained_seconds": chained,
            "fusable_operators_per_step": round(calls, 1),
        },
        where=reading.hottest("forward"),
        cure="Compile the model with torch.compile, or use the library's fused form of what is "
        "written out (GELU, softmax, normalisation, loss).",
        effort="line",
        technique="compile",
    )


def _beyond_one_loop(reading: Reading, operators: list[Operator]) -> tuple[float, float]:
    """Seconds and calls of pointwise operators that fusing would remove."""
    pointwise: dict[int, list[Operator]] = defaultdict(list)
    users: dict[int, float] = defaultdict(float)
    for op in operators:
        size = largest_input(op)
        if is_pointwise(op):
            pointwise[size].append(op)
        if is_reduction(op) or not (is_pointwise(op) or op.name.startswith(_PASSING)):
            users[size] += op.calls  # a reduction runs in the loop of its chain, and ends it
    seconds = removed = 0.0
    for size, chain in pointwise.items():
        calls = total_calls(chain)
        stay = min(calls, max(1.0, users[size]))
        removed += calls - stay
        believed = sum(reading.believed_seconds(op) for op in chain)
        seconds += believed * (1 - stay / calls)
    return seconds, removed


_PASSING = ("aten::_to_copy", "aten::detach", "aten::view", "aten::t", "aten::empty")
"""Neither pointwise work that could be saved, nor users that end a chain."""
