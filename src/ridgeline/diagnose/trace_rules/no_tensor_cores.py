"""Matmuls whose kernels' names say plain fp32: tensor cores stand idle.

Names are all that a trace has: `sgemm`, `scudnn`, `ffma`, cuDNN engines of `float`. A name that
says nothing (Triton's, Tensile's) is not counted against anybody.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent
from ridgeline.records.finding import TraceFinding

CAUSES = ("no-tensor-cores",)
LEADS_BY = "share"
LEADS_FROM = 2.0
"""Never the first cause: it says how the arithmetic could be cheaper, not what bounds the run."""
_LEAST_SHARE = 0.10
_MOST = 0.5


def _plain_us(fact: RankFacts) -> float:
    return fact.single_precision_us


def find(reading: TraceReading) -> list[TraceFinding]:
    """Plain fp32 in most of the matmuls."""
    share = reading.share(_plain_us)
    matrix = sum(fact.matrix_us for fact in reading.facts)
    if share < _LEAST_SHARE or sum(map(_plain_us, reading.facts)) < _MOST * matrix:
        return []
    return [
        reading.finding(
            "no-tensor-cores",
            of=_plain_us,
            worth_us=reading.saved("precision"),
            confidence=0.75,
            summary=f"Matmuls in plain fp32 take {percent(share)} of the window: their "
            "kernels do not use tensor cores.",
            evidence={
                "fp32_matrix_us": reading.mean(_plain_us),
                "matrix_us": reading.mean(lambda fact: fact.matrix_us),
            },
            cure="Train under torch.autocast (bf16, or fp16 with a scaler on older GPUs), or allow "
            "TF32 (torch.set_float32_matmul_precision('high')) where the GPU has it.",
        )
    ]
