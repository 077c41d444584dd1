"""Python code of the script itself takes time in every step, outside of tensor operators.

The time is what is left of the step's phases when operators, and whatever has a cause of its own
(saving, evaluation, garbage, printing), are taken away. Sampling the host's stack confirms it and
says where: only samples whose innermost function is not torch's own count.
"""

from __future__ import annotations

from collections import Counter

from ridgeline.diagnose.reading import Reading, duration, percent
from ridgeline.records import Finding, HotLine

CAUSES = ("host-python",)

_LEAST_SAMPLED_SHARE = 0.02


def find(reading: Reading) -> list[Finding]:
    """Unexplained host time, as far as samples confirm it."""
    left = _unexplained_seconds(reading)
    lines = _own_lines(reading)
    sampled = sum(line.share for line in lines)
    seconds = min(left, sampled * reading.step_seconds)
    if seconds <= 0 or sampled < _LEAST_SAMPLED_SHARE:
        return []
    where = _hottest(lines)
    return reading.finding(
        "host-python",
        touched_seconds=seconds,
        saves_seconds=(0.4 * seconds, 0.95 * seconds),
        confidence=0.8,
        summary=f"Python code in the loop takes {duration(seconds)} per step, "
        f"{percent(reading.share(seconds))} of it, while no operator runs.",
        evidence={
            "python_seconds": seconds,
            "sampled_share": sampled,
            "hottest_function": lines[0].site.function,
        },
        where=where,
        cure="Do this work once before the loop, in loader workers, or on whole tensors at a time.",
        effort="code",
    )


def _unexplained_seconds(reading: Reading) -> float:
    settings = reading.profile.settings
    points = reading.profile.sync_points
    explained = reading.of_mean(
        reading.profile.habit("save").seconds
        + reading.profile.habit("evaluation").seconds
        + settings.gc_seconds
        + reading.profile.habit("empty_cache").seconds
        + sum(p.seconds for p in points if p.kind == "print")
    )
    operators = reading.operators(phases=("forward", "other"))
    explained += reading.around_seconds(operators, "forward", "other")
    loops = {p.site for p in points if p.kind != "print" and p.calls >= 32}
    explained += reading.hot_share(loops) * reading.step_seconds
    gap = reading.gap_seconds("other", "forward")
    if reading.loader is None:
        gap += reading.gap_seconds("data")
    return max(0.0, gap - explained)


def _own_lines(reading: Reading) -> list[HotLine]:
    """Samples outside torch, in phases that are the script's own; most frequent first."""
    skip = {p.site for p in reading.profile.sync_points}
    return [
        line
        for line in reading.profile.hot_lines
        if line.phase in ("other", "forward")
        and line.site.file
        and line.site not in skip
        and not line.leaf.startswith(("torch.", "gc."))
    ]


def _hottest(lines: list[HotLine]) -> list[str]:
    seen: Counter[str] = Counter()
    for line in lines:
        seen[str(line.site)] += round(1e6 * line.share)
    return [place for place, _ in seen.most_common(3)]
