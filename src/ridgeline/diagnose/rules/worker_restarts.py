"""Loader workers are started anew for every epoch, and the step waits while they come up."""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, percent
from ridgeline.records import Finding

CAUSES = ("worker-restarts",)


def find(reading: Reading) -> list[Finding]:
    """New iterators over a loader whose workers do not persist."""
    found: list[Finding] = []
    for loader in reading.profile.loaders:
        if loader.num_workers == 0 or loader.persistent_workers or not loader.restarts:
            continue
        extra = max(0.0, loader.start_seconds - loader.wait_seconds)
        per_step = extra * loader.restarts / max(reading.profile.steps, 1)
        seconds = min(reading.of_mean(per_step), reading.phase_seconds("data"))
        # While processes start and end, the step that computes beside them is slower too.
        disturbed = max(0.0, reading.profile.step_seconds.mean - reading.step_seconds)
        found += reading.finding(
            "worker-restarts",
            touched_seconds=seconds,
            saves_seconds=(0.6 * seconds, seconds + disturbed),
            confidence=0.9,
            summary=f"Starting {loader.num_workers} workers for a new epoch takes "
            f"{duration(loader.start_seconds)}, {percent(reading.share(seconds))} of the time.",
            evidence={
                "start_seconds": loader.start_seconds,
                "num_restarts_seen": loader.restarts,
                "num_steps_seen": reading.profile.steps,
                "num_workers": loader.num_workers,
            },
            where=[loader.site],
            cure="Keep the workers from epoch to epoch: `persistent_workers=True`.",
            effort="flag",
            technique="persistent-workers",
        )
    return found
