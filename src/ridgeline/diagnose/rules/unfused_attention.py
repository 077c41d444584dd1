"""Attention written out, operator by operator.

Scores, mask, softmax and matmuls each pass a tokens × tokens matrix through memory, which fused
attention never forms (Dao et al., "FlashAttention", 2022).
"""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.diagnose.reading import DENSE_MATMULS, Reading, duration, percent, total_seconds
from ridgeline.records import Finding, Operator

CAUSES = ("unfused-attention",)

_SOFTMAX = frozenset(
    f"aten::{name}" for name in ("_softmax", "_safe_softmax", "_softmax_backward_data")
)
_SHORT = 64
"""For fewer tokens the scores stay in cache and a fused kernel gains little."""


def find(reading: Reading) -> list[Finding]:
    """Operators that touch a tokens × tokens matrix, where a softmax over one was seen."""
    unfused = reading.profile.habit("math_attention")
    if unfused.calls <= 0:
        return []
    scores = _scores(reading.operators(_SOFTMAX))
    touching = [op for op in reading.operators() if _touches(op, scores)]
    matmuls = [op for op in touching if op.name in DENSE_MATMULS]
    passing = [op for op in touching if op.name not in DENSE_MATMULS]
    moved = total_seconds(passing)
    seconds = moved + total_seconds(matmuls)
    if seconds <= 0:
        return []
    return reading.finding(
        "unfused-attention",
        touched_seconds=seconds,
        saves_seconds=(0.5 * moved, moved + 0.4 * total_seconds(matmuls)),
        confidence=0.85,
        summary=f"Attention takes {percent(reading.share(seconds))} of the step, "
        f"{duration(moved)} of it in passing {max(scores)[0]} × {max(scores)[1]} scores through "
        "memory.",
        evidence={
            "attention_seconds": seconds,
            "scores_seconds": moved,
            "num_tokens": max(scores)[1],
            "attention_calls_per_step": unfused.calls,
        },
        where=[unfused.site],
        cure="Call torch.nn.functional.scaled_dot_product_attention (with `is_causal=True` for "
        "a causal mask), and leave its choice of kernel alone.",
        effort="code",
        technique="attention-backend" if _is_called_as_one(reading) else "fused-attention",
    )


def _is_called_as_one(reading: Reading) -> bool:
    """Does torch, or a library's model, write it out, and not the script?"""
    site = reading.profile.habit("math_attention").site
    calls = [model.forward_site for model in reading.profile.models]
    return site in calls or bool(reading.operators({"aten::_safe_softmax"}))


def _scores(operators: Iterable[Operator]) -> set[tuple[int, int]]:
    """Sizes (queries, keys) of the matrices that softmax was taken over."""
    return {
        shape[-2:]
        for op in operators
        for shape in op.input_shapes()
        if len(shape) == 4 or (len(shape) == 3 and shape[-1] == shape[-2])
        if shape[-1] >= _SHORT
    }


def _touches(operator: Operator, scores: set[tuple[int, int]]) -> bool:
    """Does it read a matrix of scores (or, as a matmul, make one)?"""
    shapes = [shape for shape in operator.input_shapes() if len(shape) >= 3]
    if any(shape[-2:] in scores or shape[-2:][::-1] in scores for shape in shapes):
        return True
    if operator.name not in DENSE_MATMULS or len(shapes) < 2:
        return False
    return (shapes[0][-2], shapes[1][-1]) in scores
