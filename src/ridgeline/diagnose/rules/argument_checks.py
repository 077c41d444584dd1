"""Distributions check their arguments in every step, because that is the default.

`torch.distributions` looks whether parameters and values satisfy their constraints: several small
operators for each, and one answer that the host waits for. Its documentation says that this may be
expensive and can be switched off once a model works (`Distribution.set_default_validate_args`).
"""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, percent
from ridgeline.records import Finding

CAUSES = ("argument-checks",)

_LEAST_ON_GPU = 0.2
"""Share of the time of a check that is its own on a GPU: the rest waits for work before it."""


def find(reading: Reading) -> list[Finding]:
    """Checks that the script did not ask for, and what they take."""
    checks = reading.profile.habit("argument_check")
    seconds = reading.of_mean(checks.seconds)
    if seconds <= 0:
        return []
    waits = "; the host waits for the GPU at each" if reading.on_gpu else ""
    return reading.finding(
        "argument-checks",
        touched_seconds=seconds,
        saves_seconds=((_LEAST_ON_GPU if reading.on_gpu else 0.8) * seconds, seconds),
        confidence=0.6 if reading.on_gpu else 0.9,
        summary=f"Distributions check their arguments {checks.calls:,.3g} times per step: "
        f"{duration(seconds)}, {percent(reading.share(seconds))} of the step{waits}.",
        evidence={
            "check_seconds": seconds,
            "checks_per_step": checks.calls,
            "waits_for_device": int(reading.on_gpu),
        },
        where=[checks.site],
        cure="Once the script works, `torch.distributions.Distribution.set_default_validate_args"
        "(False)` at its start.",
        effort="line",
        technique="no-argument-checks",
    )
