"""The model is evaluated so often that training waits for it."""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, percent
from ridgeline.records import Finding

CAUSES = ("frequent-evaluation",)

_USUAL_SHARE = 0.1
"""Evaluation that takes a tenth of the run is nothing to remark on."""


def find(reading: Reading) -> list[Finding]:
    """Time in forwards without gradients, beyond a usual share."""
    evaluation = reading.profile.habit("evaluation")
    seconds = reading.of_mean(evaluation.seconds)
    if reading.profile.kind != "training" or reading.share(seconds) <= _USUAL_SHARE:
        return []
    return reading.finding(
        "frequent-evaluation",
        touched_seconds=seconds,
        saves_seconds=(0.5 * seconds, 0.9 * seconds),
        confidence=0.75,
        summary=f"Evaluation takes {percent(reading.share(seconds))} of the time: "
        f"{evaluation.calls:.3g} forwards without gradients per training step.",
        evidence={
            "evaluation_seconds": evaluation.seconds,
            "evaluations_per_step": evaluation.calls,
        },
        where=[evaluation.site],
        cure="Evaluate less often, or on a part of the validation set, or with a larger batch.",
        effort="flag",
    )
