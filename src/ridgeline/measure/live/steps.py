"""What the times of steps tell by themselves: phases, slow steps, growth, a first look.

A verdict needs operators, lines and memory. That a step waits for its batches, or for the other
ranks, shows in a handful of steps: `first_look` is said within seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from ridgeline import quantity
from ridgeline.measure.wire import Report, StepTimes
from ridgeline.records import Distribution
from ridgeline.records.profile import PHASES, TailFacts

SLOW = 1.5
"""A step is slow that takes this many times the median."""
WAITS_FROM = 1 / 3
"""Share of the step from which waiting decides what bounds it, as in the verdict."""
_WAITS = {"data": "it waits for its batches", "communication": "it waits for the other ranks"}
_NAMED = 3
_LEAST_GROWTHS = 4
"""So many steps must have been seen to grow before growth is believed."""
_STEADY_SHARE = 0.8
_EXPLAINED_SHARE = 0.5
"""Share of what memory grew by from which something harmless explains it."""


def tail_facts(steps: Sequence[StepTimes]) -> TailFacts:
    """What the slow ones among the timed steps have in common; there is at least one step."""
    seconds = np.asarray([step.seconds for step in steps])
    middle = float(np.median(seconds))
    slow = seconds > SLOW * middle
    excess = np.where(slow, seconds - middle, 0.0)
    total = float(excess.sum())
    early = max(1, len(steps) // 10)
    names = dict.fromkeys(name for step in steps for name in step.phases)
    beyond: dict[str, float] = {}
    for name in names:
        phase = np.asarray([step.phases.get(name, 0.0) for step in steps])
        beyond[name] = float((phase[slow] - np.median(phase)).sum())
    sizes = np.asarray([step.tokens or step.samples for step in steps])
    return TailFacts(
        slow_steps=int(slow.sum()),
        excess_seconds=total,
        early_share=float(excess[:early].sum()) / total if total else 0.0,
        phase_seconds=beyond,
        size_correlation=_in_step(seconds, sizes),
    )


def _in_step(seconds: np.ndarray, sizes: np.ndarray) -> float | None:
    """Spearman's rank correlation over the largest that these sizes allow; None: all are equal.

    Equal sizes share a rank. Where one call in eight is long and the others equal, even times in
    perfect step with the sizes correlate by 0.57 only.
    """
    if len(set(sizes.tolist())) < 2:
        return None
    timed, sized = _ranks(seconds), _ranks(sizes)
    largest = float(np.corrcoef(np.sort(timed), np.sort(sized))[0, 1])
    return float(np.corrcoef(timed, sized)[0, 1]) / largest


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def phases_of(
    steps: list[StepTimes], exposed_seconds: float, copy_seconds: float
) -> dict[str, Distribution]:
    """The distribution of each phase's seconds.

    Communication that runs inside backward (DDP's own) is moved out of it in proportion, by what
    the profiler saw exposed; so are copies out of what is left over.
    """
    table: dict[str, list[float]] = {phase: [] for phase in PHASES}
    backward = sum(step.phases.get("backward", 0.0) for step in steps) / len(steps)
    blocking = sum(step.phases.get("communication", 0.0) for step in steps) / len(steps)
    hidden = max(0.0, exposed_seconds - blocking)
    moved = min(1.0, hidden / backward) if backward else 0.0
    for step in steps:
        values = dict.fromkeys(PHASES, 0.0)
        for name, seconds in step.phases.items():
            values[phase_of(name)] += seconds
        values["communication"] += moved * values["backward"]
        values["backward"] *= 1 - moved
        copied = min(copy_seconds, values["other"])
        values["copy"] += copied
        values["other"] -= copied
        for name, seconds in values.items():
            table[name].append(seconds)
    return {name: Distribution.of(values) for name, values in table.items()}


def phase_of(name: str) -> str:
    """The phase of a profile that a phase of the child's clock belongs to."""
    return name if name in PHASES else "other"


def phase_means(steps: list[StepTimes]) -> dict[str, float]:
    """Mean seconds per phase of a profile."""
    means: dict[str, float] = defaultdict(float)
    for step in steps:
        for name, seconds in step.phases.items():
            means[phase_of(name)] += seconds / len(steps)
    return means


def growth_per_step(sampler_look: Report | None) -> float:
    """Bytes that every step leaves behind.

    Batches of different sizes make what is alive at a boundary go up and down; it grows only if
    most steps add about as much as the median step does. What a collection of garbage takes away
    again grows to the next one and no further. What the model is given again at each call (keys
    and values of the tokens so far) grows to the end of its sequence.
    """
    if sampler_look is None or len(sampler_look.held_bytes) <= _LEAST_GROWTHS:
        return 0.0
    held = sampler_look.held_bytes
    if sampler_look.collected_bytes >= _EXPLAINED_SHARE * (held[-1] - held[0]) > 0:
        return 0.0
    given = sampler_look.input_bytes or [0]
    # A call's new cache and the one that it was given are both there when it ends.
    if 2 * (given[-1] - given[0]) >= _EXPLAINED_SHARE * (held[-1] - held[0]) > 0:
        return 0.0
    growths = np.diff(held)
    median = float(np.median(growths))
    steady = median > 0 and float(np.mean(growths >= 0.5 * median)) >= _STEADY_SHARE
    if held[-1] - held[0] < 0.5 * median * len(growths):
        return 0.0  # the collector came by meanwhile, and took most of it away
    return median if steady else 0.0


def first_look(steps: Sequence[StepTimes]) -> str:
    """Step time and its largest phases, in a line; empty without steps.

    >>> phases = {"data": 0.3, "forward": 0.1, "backward": 0.1}
    >>> first_look([StepTimes(seconds=0.5, phases=phases, samples=0, tokens=0)])
    'first look: 500 ms a step, data 60 %, forward 20 %, backward 20 %: it waits for its batches'
    """
    total = sum(step.seconds for step in steps)
    if not total:
        return ""
    spent: defaultdict[str, float] = defaultdict(float)
    for step in steps:
        for name, seconds in step.phases.items():
            spent[name] += seconds
    largest = sorted(spent, key=lambda name: -spent[name])[:_NAMED]
    named = ", ".join(f"{name} {100 * spent[name] / total:.0f} %" for name in largest)
    waits = [why for name, why in _WAITS.items() if spent[name] >= WAITS_FROM * total]
    why = "".join(f": {one}" for one in waits[:1])
    return f"first look: {quantity.seconds(total / len(steps))} a step, {named}{why}"
