"""Activations are computed twice to save memory that is not short.

Checkpointing throws activations away and runs the forward again during backward (Chen et al.,
"Training deep nets with sublinear memory cost", 2016). That buys memory; where there is plenty,
it only costs the second forward.
"""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, megabytes, percent
from ridgeline.records import Finding

CAUSES = ("needless-checkpointing",)

_ROOM = 0.8
"""Share of the memory that may be full without checkpointing."""


def find(reading: Reading) -> list[Finding]:
    """Recomputation was seen, and what it saves would fit."""
    profile = reading.profile
    recompute = profile.habit("recompute")
    seconds = reading.of_mean(recompute.seconds)
    seconds = min(seconds, reading.phase_seconds("backward"))
    if seconds <= 0:
        return []
    # Everything that forward writes would stay alive, at most.
    needed = profile.peak_memory_bytes + profile.kept_at_most_bytes("forward")
    room = profile.device_memory_bytes
    if room and needed > _ROOM * room:
        return []
    return reading.finding(
        "needless-checkpointing",
        touched_seconds=seconds,
        saves_seconds=(0.8 * seconds, 1.05 * seconds),
        confidence=0.9 if room else 0.5,
        summary=f"Checkpointing runs {duration(seconds)} of forward a second time, "
        f"{percent(reading.share(seconds))} of the step, while the peak is "
        f"{megabytes(profile.peak_memory_bytes)} of {megabytes(room)}.",
        evidence={
            "recompute_seconds": seconds,
            "peak_memory_bytes": profile.peak_memory_bytes,
            "needed_at_most_bytes": int(needed),
            "device_memory_bytes": room,
        },
        where=[recompute.site],
        cure="Leave activation checkpointing off while the activations fit.",
        effort="line",
        technique="no-checkpointing",
    )
