"""What a deadline takes: the factor on one stage alone, and on all alike, that meets it.

The share of missed frames falls as a stage gets faster, so the largest factor is found by halving.
A pipeline in which it does not (a faster stage that hurries frames into a fuller queue) is still
answered rightly: the factor that is returned has been simulated, and met.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec

from ridgeline.plan.realtime.event_loop import simulate_timing
from ridgeline.plan.realtime.figures import sink_figures
from ridgeline.plan.realtime.timing import PipelineTiming
from ridgeline.records.realtime_simulation import NeededFactor, TargetAnswer

STEPS = 7
"""How often the range is halved: the factor is right to less than a hundredth."""


def what_it_takes(
    timing: PipelineTiming,
    target_seconds: float,
    max_miss: float,
    slots: int,
    seed: int,
    on_progress: Callable[[str], None] = lambda _: None,
) -> TargetAnswer:
    """The factors that meet a target.

    Args:
        timing: The pipeline as it is.
        target_seconds: Age of a result, at most.
        max_miss: Share of frames that may be late or lost.
        slots: Frames of the first sensor to simulate.
        seed: As in `simulate_timing`.
        on_progress: Told what is under way.
    """
    shape = msgspec.structs.replace(timing.shape, deadline_seconds=target_seconds)
    timing = replace(timing, shape=shape)

    def met(names: tuple[str, ...], factor: float) -> bool:
        stages = {
            name: replace(one, scale=one.scale * factor) if name in names else one
            for name, one in timing.stages.items()
        }
        sinks = sink_figures(simulate_timing(replace(timing, stages=stages), slots, seed))
        return all(one.miss_share is not None and one.miss_share <= max_miss for one in sinks)

    now = met((), 1.0)
    factors = []
    everything = tuple(timing.stages)
    for names in (*((name,) for name in everything), everything):
        label = names[0] if len(names) == 1 else ""
        on_progress(f"what {label or 'all stages'} would have to take")
        factor = 1.0 if now else _largest(partial(met, names))
        seconds = sum(timing.stages[name].mean_seconds for name in names)
        factors.append(
            NeededFactor(
                stage=label,
                factor=factor,
                now_seconds=seconds,
                needed_seconds=None if factor is None else factor * seconds,
            )
        )
    if len(timing.stages) == 1:
        factors.pop()
    return TargetAnswer(
        target_seconds=target_seconds, max_miss=max_miss, met=now, factors=tuple(factors)
    )


def _largest(met: Callable[[float], bool]) -> float | None:
    """The largest factor below 1 that meets it; None: not even 0 does."""
    if not met(0.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if met(middle) else (low, middle)
    return low
