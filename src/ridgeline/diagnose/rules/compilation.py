"""torch.compile works against itself: it compiles again and again, or breaks its graphs."""

from __future__ import annotations

from ridgeline.diagnose.reading import (
    Reading,
    duration,
    is_pointwise,
    percent,
    places,
    total_seconds,
)
from ridgeline.records import Finding

CAUSES = ("recompilation", "graph-breaks")


def find(reading: Reading) -> list[Finding]:
    """Compilations during the timed steps; places where graphs end early."""
    return [*_recompilation(reading), *_graph_breaks(reading)]


def _recompilation(reading: Reading) -> list[Finding]:
    settings = reading.profile.settings
    steps = max(reading.profile.steps, 1)
    if settings.recompiles <= 0 or settings.compile_seconds <= 0:
        return []
    per_step = settings.compile_seconds / steps
    share = min(1.0, per_step / reading.profile.step_seconds.mean)
    seconds = share * reading.step_seconds
    return reading.finding(
        "recompilation",
        touched_seconds=seconds,
        saves_seconds=(0.6 * seconds, seconds),
        confidence=0.9,
        summary=f"torch.compile compiled {settings.recompiles} times in {steps} steps, long "
        f"after the first: {duration(per_step)} per step, {percent(share)} of it.",
        evidence={
            "num_recompilations": settings.recompiles,
            "num_steps": steps,
            "compile_seconds": settings.compile_seconds,
        },
        where=[reading.model.forward_site if reading.model is not None else None],
        cure="Let sizes vary (`dynamic=True`, or `torch._dynamo.mark_dynamic`), pad them to a "
        "few lengths, and pass changing numbers as tensors.",
        effort="line",
    )


def _graph_breaks(reading: Reading) -> list[Finding]:
    breaks = reading.profile.graph_breaks
    if not breaks:
        return []
    # What a break costs: operators on both sides of it cannot run in one loop.
    pointwise = total_seconds(op for op in reading.operators() if is_pointwise(op))
    around = reading.gap_seconds("forward")
    count = sum(b.count for b in breaks)
    share = min(1.0, count / max(reading.profile.settings.graph_compiles, count))
    return reading.finding(
        "graph-breaks",
        touched_seconds=pointwise + around,
        saves_seconds=(0.25 * share * pointwise + 0.2 * around, 0.7 * pointwise + 0.8 * around),
        confidence=0.75,
        summary=f"torch.compile falls back to Python at {len(breaks)} places: "
        f"{breaks[0].reason.rstrip('.')}.",
        evidence={
            "num_places": len(breaks),
            "num_breaks": count,
            "num_graphs": reading.profile.settings.graph_compiles,
            "pointwise_seconds": pointwise,
        },
        where=places(b.site for b in breaks)[:3],
        cure="Move what cannot be compiled (printing, `.item()`, branches on values) out of "
        "the compiled function.",
        effort="code",
    )
