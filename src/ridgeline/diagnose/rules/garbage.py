"""Python's cyclic garbage collector takes its time out of the step."""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, percent
from ridgeline.records import Finding

CAUSES = ("forced-gc", "gc-pauses")


def find(reading: Reading) -> list[Finding]:
    """Collections that the script asks for, or those that come by themselves."""
    settings = reading.profile.settings
    forced = reading.profile.habit("gc_collect")
    seconds = reading.of_mean(settings.gc_seconds)
    compiles = settings.compile_seconds > 0 and forced.calls == 0
    if seconds <= 0 or compiles:  # a compiler makes garbage of its own
        return []
    share = percent(reading.share(seconds))
    evidence: dict[str, float | int | str] = {
        "gc_seconds": settings.gc_seconds,
        "collections_forced_per_step": forced.calls,
    }
    if forced.calls > 0:
        return reading.finding(
            "forced-gc",
            touched_seconds=seconds,
            saves_seconds=(0.8 * seconds, seconds),
            confidence=0.95,
            summary=f"gc.collect() takes {duration(settings.gc_seconds)} per step, {share} of it.",
            evidence=evidence,
            where=[forced.site],
            cure="Remove the call: tensors are freed when their last reference goes, with or "
            "without the cyclic collector.",
            effort="line",
            technique="no-forced-gc",
        )
    return reading.finding(
        "gc-pauses",
        touched_seconds=seconds,
        saves_seconds=(0.6 * seconds, 0.95 * seconds),
        confidence=0.85,
        summary=f"Python's garbage collector takes {share} of the step.",
        evidence=evidence,
        cure="Call `gc.freeze()` once everything is set up: objects that live as long as the "
        "run are then not searched again and again.",
        effort="line",
        technique="gc-freeze",
    )
