"""The GPU computes nearly all the time: only less or faster arithmetic makes the run shorter."""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent
from ridgeline.records.finding import TraceFinding

CAUSES = ("compute-bound",)
LEADS_FROM = 0.50
_SURE = 0.80
_MEMORY_CLASSES = ("elementwise", "norm", "copy", "reduction", "indexing", "optimizer")


def _compute_us(fact: RankFacts) -> float:
    return fact.summary.compute_us


def find(reading: TraceReading) -> list[TraceFinding]:
    """Compute over half of the window."""
    share = reading.share(_compute_us)
    if share < LEADS_FROM:
        return []
    worst = reading.worst(_compute_us)
    found = worst.kernels.classes if worst.kernels else []
    own = {one.name: one.total_us for one in found if one.name != "communication"}
    whole = sum(own.values())
    classes = {name: us / whole for name, us in own.items()} if whole else {}
    memory = sum(classes.get(name, 0.0) for name in _MEMORY_CLASSES)
    largest = max(classes, key=lambda name: classes[name], default="")
    kernels = worst.kernels
    return [
        reading.finding(
            "compute-bound",
            of=_compute_us,
            confidence=0.85 if share >= _SURE else 0.65,
            summary=f"Kernels that compute fill {percent(share)} of the window; the largest part "
            f"of their time is {largest} ({percent(classes.get(largest, 0.0))}).",
            evidence={
                "compute_us": reading.mean(_compute_us),
                "sm_efficiency_estimate": kernels.sm_efficiency if kernels else None,
                "occupancy_percent_estimate": kernels.occupancy_percent if kernels else None,
                "tensor_core_share_by_name": kernels.tensor_core_share if kernels else None,
                "memory_bound_classes_share": memory,
                **{f"{name}_share": part for name, part in list(classes.items())[:4]},
            },
            where=[
                one.name[:120]
                for one in (kernels.kernels if kernels else [])
                if one.kernel_class != "communication"
            ][:3],
            cure="Most of it moves memory between small operations: fuse them (torch.compile)."
            if memory > 0.5
            else "Make the arithmetic cheaper: lower precision, better kernels for the largest "
            "class, fewer operations.",
        )
    ]
