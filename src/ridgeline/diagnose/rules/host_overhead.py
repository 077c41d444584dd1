"""The host costs more than the operators that it starts: the script's own Python, and dispatch.

Python: the time is what is left of the step's phases when operators, and whatever has a cause of
its own (saving, evaluation, garbage, printing), are taken away. Sampling the host's stack confirms
it and says where: only samples whose innermost function is not torch's own count.

Dispatch: every operator costs the host some microseconds before it computes anything, and on a GPU
a launch. Thousands of them on a few kilobytes each spend the step on starting.
"""

from __future__ import annotations

from collections import Counter

from ridgeline.diagnose.reading import Reading, duration, percent, total_calls, total_seconds
from ridgeline.records import Finding, HotLine

CAUSES = ("host-python", "tiny-operators")

_LEAST_SAMPLED_SHARE = 0.02
_PHASES = ("forward", "backward", "other")
_LEAST_SHARE = 0.15
"""Below this they are not what the step is spent on."""
_MANY = 200
"""Fewer small operators than this are what every model has around its large ones."""


def find(reading: Reading) -> list[Finding]:
    """Find host time that only Python explains, and operators too small for their start."""
    return [*_python(reading), *_tiny_operators(reading)]


def _python(reading: Reading) -> list[Finding]:
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
    explained += reading.asleep_seconds
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


def _tiny_operators(reading: Reading) -> list[Finding]:
    """Time in small operators and around them."""
    small = reading.small_operators(*_PHASES)
    calls = total_calls(small)
    seconds = total_seconds(small) + reading.around_seconds(small, "forward", "backward")
    if calls < _MANY or reading.share(seconds) < _LEAST_SHARE or reading.compiled:
        return []
    return reading.finding(
        "tiny-operators",
        touched_seconds=seconds,
        saves_seconds=(0.35 * seconds, 0.85 * seconds),
        confidence=0.8,
        summary=f"{calls:,.0f} of {reading.profile.operator_calls:,.0f} operators per step "
        f"are too small to pay for their start: {percent(reading.share(seconds))} of the step.",
        evidence={
            "small_operators_per_step": calls,
            "operators_per_step": reading.profile.operator_calls,
            "small_operator_seconds": seconds,
            "dispatch_seconds": reading.dispatch_seconds,
        },
        where=reading.hottest("forward"),
        cure="Compute on whole tensors instead of slices in a Python loop, use the library's "
        "own layer, or let torch.compile fuse the operators"
        + (" or a CUDA graph replay them." if reading.on_gpu else "."),
        effort="code",
        technique="cuda-graphs" if reading.on_gpu else "compile",
    )
