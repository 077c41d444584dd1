"""Every backward keeps its graph: activations stay alive, and may be walked through again.

A graph that is kept is needed only when another backward goes through it; the last one of a step
has nobody to keep it for. Whether old graphs are really walked again shows in the arithmetic:
backward takes twice the matmuls of forward, and more only if it repeats some.
"""

from __future__ import annotations

from ridgeline.diagnose.kinds import DENSE_MATMULS
from ridgeline.diagnose.reading import Evidence, Reading, megabytes, percent, warning
from ridgeline.records import Finding
from ridgeline.records.matmuls import MATMULS

CAUSES = ("retained-graph",)

_BACKWARD_OVER_FORWARD = 2.0
_CLEARLY_MORE = 1.3


def find(reading: Reading) -> list[Finding]:
    """No backward of the step lets go of its graph."""
    profile = reading.profile
    settings = profile.settings
    backwards = settings.backwards_per_step
    if backwards <= 0 or profile.habit("retain_graph").calls < 0.99 * backwards:
        return []
    again = _walked_again_share(reading)
    saved = again * reading.phase_seconds("backward")
    growth = max(0.0, profile.memory_growth_bytes_per_step)
    summary = "Every backward keeps its graph"
    if again:
        summary += f", and {percent(again)} of backward goes through graphs of earlier steps"
    elif growth > 0:
        summary += f", and memory grows by {megabytes(growth)} per step"
    evidence: Evidence = {
        "retained_per_step": profile.habit("retain_graph").calls,
        "backwards_per_step": backwards,
        "walked_again_share": again,
        "growth_bytes": int(growth),
        "activations_bytes": profile.memory.activations_bytes,
    }
    cure = (
        "Call `backward()` without `retain_graph=True`; detach what is carried from one step to "
        "the next (hidden states, running losses)."
    )
    where = [profile.habit("retain_graph").site]
    if saved <= 0:
        return warning(
            "retained-graph",
            confidence=0.9 if growth else 0.6,
            summary=summary + ".",
            evidence=evidence,
            cure=cure,
            effort="line",
            where=where,
        )
    return reading.finding(
        "retained-graph",
        touched_seconds=reading.phase_seconds("backward"),
        saves_seconds=(0.7 * saved, saved),
        confidence=0.9,
        summary=summary + ".",
        evidence=evidence,
        cure=cure,
        effort="line",
        where=where,
    )


def _walked_again_share(reading: Reading) -> float:
    """Part of backward's arithmetic beyond what one pass through one graph takes."""
    names = MATMULS if reading.profile.habit("recompute").seconds == 0 else DENSE_MATMULS
    forward = sum(op.flops for op in reading.operators(names, phases=("forward", "other")))
    backward = sum(op.flops for op in reading.operators(names, phases=("backward",)))
    if not forward or backward <= _CLEARLY_MORE * _BACKWARD_OVER_FORWARD * forward:
        return 0.0
    return 1 - _BACKWARD_OVER_FORWARD * forward / backward
