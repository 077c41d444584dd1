"""Checkpoints written so often that writing them is part of the step."""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, percent
from ridgeline.records import Finding

CAUSES = ("save-in-loop",)


def find(reading: Reading) -> list[Finding]:
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
