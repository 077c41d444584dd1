"""What a frame's deadline leaves: its slack, and how much faster one stage must become.

    slack      D - sum of the stages
    needed     stage / (D - the other stages)

of stages that run one after another on one frame. Jitter, queues and stages that run side by side
are for the simulator (`ridgeline realtime simulate`): this is the sum on the back of an envelope.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def slack_seconds(deadline_seconds: float, stage_seconds: Sequence[float]) -> float:
    """The part of the deadline that no stage uses; below 0: the frame is late by so much.

    >>> round(slack_seconds(0.033, [0.004, 0.018, 0.006]), 6)
    0.005
    """
    _check(deadline_seconds, stage_seconds)
    return deadline_seconds - sum(stage_seconds)


def needed_speedup(
    deadline_seconds: float, stage_seconds: float, other_seconds: Sequence[float]
) -> float:
    """How many times faster one stage must be for the frame to meet its deadline; ∞: never.

    >>> needed_speedup(0.033, 0.046, [0.004, 0.006])
    2.0
    """
    _check(deadline_seconds, [stage_seconds, *other_seconds])
    left = slack_seconds(deadline_seconds, other_seconds)
    return stage_seconds / left if left > 0.0 else math.inf


def _check(deadline_seconds: float, stages: Sequence[float]) -> None:
    if deadline_seconds <= 0.0 or min(stages, default=0.0) < 0.0:
        raise ValueError("a deadline is above 0, and no stage takes less than nothing")
