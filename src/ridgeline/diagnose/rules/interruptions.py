"""What interrupts training so often that it waits: checkpoints written, the model evaluated."""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, percent
from ridgeline.records import Finding

CAUSES = ("frequent-evaluation", "save-in-loop")

_USUAL_SHARE = 0.1
"""Evaluation that takes a tenth of the run is nothing to remark on."""


def find(reading: Reading) -> list[Finding]:
    """Find time in `torch.save`, and in forwards without gradients beyond a usual share."""
    return [*_evaluation(reading), *_saving(reading)]


def _evaluation(reading: Reading) -> list[Finding]:
    """Time in forwards without gradients, beyond a usual share."""
    settings = reading.profile.settings
    seconds = reading.of_mean(settings.evaluation_seconds)
    if reading.profile.kind != "training" or reading.share(seconds) <= _USUAL_SHARE:
        return []
    return reading.finding(
        "frequent-evaluation",
        touched_seconds=seconds,
        saves_seconds=(0.5 * seconds, 0.9 * seconds),
        confidence=0.75,
        summary=f"Evaluation takes {percent(reading.share(seconds))} of the time: "
        f"{settings.evaluations:.3g} forwards without gradients per training step.",
        evidence={
            "evaluation_seconds": settings.evaluation_seconds,
            "evaluations_per_step": settings.evaluations,
        },
        where=[settings.evaluation_site],
        cure="Evaluate less often, or on a part of the validation set, or with a larger batch.",
        effort="flag",
    )


def _saving(reading: Reading) -> list[Finding]:
    """Time in `torch.save`, as a mean over the timed steps."""
    settings = reading.profile.settings
    seconds = reading.of_mean(settings.save_seconds)
    if seconds <= 0:
        return []
    return reading.finding(
        "save-in-loop",
        touched_seconds=seconds,
        saves_seconds=(0.6 * seconds, seconds),
        confidence=0.9,
        summary=f"torch.save takes {duration(settings.save_seconds)} per step, "
        f"{percent(reading.share(seconds))} of it.",
        evidence={"save_seconds": settings.save_seconds},
        where=[settings.save_site],
        cure="Save every so many minutes instead of every so few steps, or copy the state and "
        "write it in a thread of its own.",
        effort="line",
    )
