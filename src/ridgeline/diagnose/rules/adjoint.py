"""Differential equations are solved a second time to save memory that is not short.

The adjoint method (Chen et al., "Neural ordinary differential equations", 2018) keeps nothing of a
solve and integrates a larger equation back through time for the gradients. Going back through the
steps of the solver takes memory for each evaluation, less time, and gives exact gradients of what
was computed (Gholami et al., "ANODE", 2019; Kidger, "On neural differential equations", 2022,
section 5.1).
"""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, megabytes, percent
from ridgeline.records import Finding

CAUSES = ("adjoint-solve",)

_ROOM = 0.8
"""Share of the memory that may be full without it."""
_GROWTH = 2.0
"""Times as many evaluations as were seen: solvers take more steps as a model learns."""


def find(reading: Reading) -> list[Finding]:
    """A second solve was seen, and what the first would keep fits."""
    profile = reading.profile
    habits = [profile.habit("ode_adjoint"), profile.habit("sde_adjoint")]
    seconds = reading.of_mean(sum(habit.seconds for habit in habits))
    seconds = min(seconds, reading.phase_seconds("backward"))
    kept = profile.kept_at_most_bytes("forward", "other")
    if seconds <= 0 or kept == 0:
        return []
    needed = profile.peak_memory_bytes + _GROWTH * kept
    room = profile.device_memory_bytes
    if room and needed > _ROOM * room:
        return []
    return reading.finding(
        "adjoint-solve",
        touched_seconds=seconds,
        saves_seconds=(0.5 * seconds, 0.95 * seconds),
        confidence=0.8 if room else 0.5,
        summary=f"The adjoint method solves a second equation in backward: {duration(seconds)}, "
        f"{percent(reading.share(seconds))} of the step. To keep the first solve would take "
        f"{megabytes(int(kept))} at most.",
        evidence={
            "adjoint_seconds": seconds,
            "solves_per_step": sum(habit.calls for habit in habits),
            "peak_memory_bytes": profile.peak_memory_bytes,
            "kept_at_most_bytes": int(kept),
            "device_memory_bytes": room,
        },
        where=[habit.site for habit in habits],
        cure="Go back through the solver while that fits: `odeint` in the place of "
        "`odeint_adjoint`, `sdeint` of `sdeint_adjoint`, `cdeint(…, adjoint=False)`.",
        effort="line",
        technique="no-adjoint",
    )
