"""Local SGD: every rank steps on its own, and only each H-th step weights are averaged.

    step = compute + exposed synchronisation / H

Stich, 1805.09767; Lin et al., 1808.07217 (post-local SGD); with an outer optimizer DiLoCo
(Douillard et al., 2311.08105, H = 500). Time per step is all that is computed here: more local
steps also make each step less worth, which only a run shows.
"""

from __future__ import annotations

import math


def local_step_seconds(
    compute_seconds: float,
    sync_seconds: float,
    sync_every: int,
    *,
    hidden_seconds: float = 0.0,
) -> float:
    """Mean step when the weights are averaged every `sync_every` steps.

    `hidden_seconds` of each synchronisation run beside compute.

    >>> local_step_seconds(0.1, 0.4, 1), local_step_seconds(0.1, 0.4, 8)
    (0.5, 0.15000000000000002)
    """
    if sync_every < 1:
        raise ValueError(f"weights are averaged every 1 or more steps, not {sync_every}")
    return compute_seconds + max(0.0, sync_seconds - hidden_seconds) / sync_every


def local_sgd_speedup(
    compute_seconds: float,
    sync_seconds: float,
    sync_every: int,
    *,
    hidden_seconds_each_step: float = 0.0,
) -> float:
    """Steps per second over synchronising each step, whose all-reduce hides under the backward.

    >>> round(local_sgd_speedup(0.1, 0.4, 8, hidden_seconds_each_step=0.05), 2)
    3.0
    """
    each = compute_seconds + max(0.0, sync_seconds - hidden_seconds_each_step)
    return each / local_step_seconds(compute_seconds, sync_seconds, sync_every)


def sync_interval_for(
    efficiency: float, compute_seconds: float, sync_seconds: float, *, hidden_seconds: float = 0.0
) -> int:
    """The fewest steps between synchronisations that keep compute busy for this share of time.

    >>> sync_interval_for(0.95, 0.1, 0.4)
    76
    """
    if not 0.0 < efficiency < 1.0:
        raise ValueError(f"an efficiency lies between 0 and 1, not at {efficiency}")
    exposed = max(0.0, sync_seconds - hidden_seconds)
    allowed = compute_seconds * (1.0 - efficiency) / efficiency
    return max(1, math.ceil(round(exposed / allowed, 9)))
