"""What the phase clock tells before anything else was looked at: said within seconds.

The verdict needs operators, lines and memory. That a step waits for its batches, or for the
other ranks, shows in a handful of steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ridgeline import quantity
from ridgeline.measure.wire import StepTimes

WAITS_FROM = 1 / 3
"""Share of the step from which waiting decides what bounds it, as in the verdict."""
_WAITS = {"data": "it waits for its batches", "communication": "it waits for the other ranks"}
_NAMED = 3


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
