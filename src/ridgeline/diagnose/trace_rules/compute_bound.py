"""Kernels fill the window: only less or faster work on the GPU makes the run shorter.

`compute-bound` where most of their time is below the roof of arithmetic, `memory-bound` where it is
below that of memory, `gpu-bound` where the trace does not say which (`trace/time/headroom.py`).
What it is worth is the headroom of kernels that stay far below their roof; a run whose kernels are
all good, or whose shapes were not recorded, has none that a trace could show.
"""

from __future__ import annotations

from ridgeline.diagnose.trace_facts import RankFacts
from ridgeline.diagnose.trace_reading import TraceReading, percent, time_text
from ridgeline.records.finding import TraceFinding
from ridgeline.trace.kernel_names import short_name
from ridgeline.trace.time.headroom import NEAR, SlowKernel

CAUSES = ("compute-bound", "memory-bound", "gpu-bound")
LEADS_FROM = 0.50
LEADS_BY = "share"
_SURE = 0.80
_MOST = 0.5
_MOST_BY_CLASS = {"compute": 0.51, "memory": 0.6}
"""Parts of kernel time from which a roof is said to bound the run. Where few shapes are known,
classes of kernels tell, which is weaker evidence: half and half is neither."""
_WORTH_A_WORD = 0.03
_WORTH_CURING = 0.12
_LIMITS = {"compute": "arithmetic", "memory": "memory traffic"}


def _compute_us(fact: RankFacts) -> float:
    return fact.summary.compute_us


def find(reading: TraceReading) -> list[TraceFinding]:
    """Compute over half of the window."""
    share = reading.share(_compute_us)
    if share < LEADS_FROM:
        return []
    worst = reading.worst(_compute_us)
    kernels = worst.kernels
    classes = _classes(worst)
    largest = max(classes, key=lambda name: classes[name], default="")
    cause, parts = _limit(reading)
    slow = [one for one in worst.slow_kernels
            if one.headroom_us >= _WORTH_A_WORD * worst.window_us]  # fmt: skip
    return [
        reading.finding(
            cause,
            of=_compute_us,
            worth_us=_worth_us(reading),
            confidence=0.85 if share >= _SURE else 0.65,
            summary=f"Kernels fill {percent(share)} of the window; the largest part of their time "
            f"is {largest} ({percent(classes.get(largest, 0.0))})." + _slow_words(slow),
            evidence={
                "compute_us": reading.mean(_compute_us),
                "sm_efficiency_estimate": kernels.sm_efficiency if kernels else None,
                "occupancy_percent_estimate": kernels.occupancy_percent if kernels else None,
                "tensor_core_share_by_name": kernels.tensor_core_share if kernels else None,
                **{f"below_{side}_roof_share": part for side, part in parts.items()},
                **{f"{name}_share": part for name, part in list(classes.items())[:4]},
            },
            where=[one.name[:120] for one in slow] or [
                one.name[:120]
                for one in (kernels.kernels if kernels else [])
                if one.kernel_class != "communication"
            ][:3],
            cure=_cure(cause, slow),
        )
    ]  # fmt: skip


def _worth_us(reading: TraceReading) -> float:
    """What better kernels save: of ranks that meet no more than the one with the best could lose.

    By what kernels take longer on one rank than on the others, that rank is late.
    """
    saved = reading.saved("kernels")
    if reading.together is None:
        return saved
    least = min(sum(one.headroom_us for one in fact.slow_kernels) for fact in reading.facts)
    return min(saved, least)


def _classes(fact: RankFacts) -> dict[str, float]:
    """Shares of kernel time by class, without communication."""
    found = fact.kernels.classes if fact.kernels else []
    own = {one.name: one.total_us for one in found if one.name != "communication"}
    whole = sum(own.values())
    return {name: us / whole for name, us in own.items()} if whole else {}


def _limit(reading: TraceReading) -> tuple[str, dict[str, float]]:
    """The cause, and the shares of kernel time by the roof that they stay below."""
    sides = {
        side: reading.mean(lambda fact, side=side: fact.below_us.get(side, 0.0))  # type: ignore[misc]
        for side in ("compute", "memory", "unknown")
    }
    whole = sum(sides.values())
    parts = {side: us / whole for side, us in sides.items()} if whole else {}
    slow = _headroom(reading)
    if slow["memory"] >= max(_WORTH_CURING * reading.window_us, slow["compute"]):
        # What the kernels could lose says more than where they spend their time now.
        return "memory-bound", parts
    told = reading.mean(lambda fact: fact.told_by_shapes_us) >= _MOST * whole
    for side in _LIMITS:
        if parts.get(side, 0.0) >= (_MOST if told else _MOST_BY_CLASS[side]):
            return f"{side}-bound", parts
    return "gpu-bound", parts


def _headroom(reading: TraceReading) -> dict[str, float]:
    """What slow kernels could lose by the roof that they stay below, in µs of a rank.

    Those that are nowhere near it are not bounded by it, whatever they could lose.
    """
    return {
        side: reading.mean(
            lambda fact, side=side: sum(  # type: ignore[misc]
                one.headroom_us
                for one in fact.slow_kernels
                if one.bound == side and one.attained_percent >= 100 * NEAR
            )
        )
        for side in _LIMITS
    }


def _slow_words(slow: list[SlowKernel]) -> str:
    if not slow:
        return ""
    first = slow[0]
    return (
        f" {short_name(first.name)} attains {first.attained_percent:.0f} % of its roof "
        f"({_LIMITS[first.bound]}), {time_text(first.headroom_us)} more than a good kernel needs."
    )


def _cure(cause: str, slow: list[SlowKernel]) -> str:
    if slow and slow[0].kernel_class in ("gemm", "convolution"):
        return (
            "Its shapes do not suit the kernel: pad dimensions to multiples of 8 (better 64), "
            "batch small matmuls together, keep tensors contiguous (ridgeline trace operators "
            "--by shape shows which)."
        )
    if slow and slow[0].bound == "memory":
        return (
            "A fused kernel moves that memory once: scaled_dot_product_attention in place of "
            "matmul, softmax and matmul; torch.compile for chains of operators."
        )
    if cause == "memory-bound":
        return (
            "Move less memory: fuse what follows each other (torch.compile), smaller formats for "
            "weights and activations, larger batches where weights are read for few rows."
        )
    return (
        "Make the arithmetic cheaper: lower precision, better kernels for the largest class, "
        "fewer operations."
    )
