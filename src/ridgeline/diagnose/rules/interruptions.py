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


def _saving(reading: Reading) -> list[Finding]:
    """Time in `torch.save`, as a mean over the timed steps."""
    save = reading.profile.habit("save")
    seconds = reading.of_mean(save.seconds)
    if seconds <= 0:
        return []
    return reading.finding(
        "save-in-loop",
        touched_seconds=seconds,
        saves_seconds=(0.6 * seconds, seconds),
        confidence=0.9,
        summary=f"torch.save takes {duration(save.seconds)} per step, "
        f"{percent(reading.share(seconds))} of it.",
        evidence={"save_seconds": save.seconds},
        where=[save.site],
        cure="Save every so many minutes instead of every so few steps, or copy the state and "
        "write it in a thread of its own.",
        effort="line",
    )
