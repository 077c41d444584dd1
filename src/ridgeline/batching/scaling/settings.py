"""How a fleet is to be scaled: one value for what `serve` does and `simulate serving` forecasts."""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.batching.scaling.burn_rate import BurnRate
from ridgeline.batching.scaling.policies import KvUsage, OpenRequests, Policy, Stabilised

ScaleOn = Literal["queue", "kv", "slo"]
"""What is looked at. queue: open requests per replica. kv: share of KV blocks in use. slo: the
error budget's burn."""


class Scaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Field for field flags of `ridgeline serve`."""

    minimum: int = 1
    maximum: int
    on: ScaleOn = "queue"
    open_per_replica: float = 8.0
    """Requests that wait or run for each replica, on queue."""
    kv_target: float = 0.7
    """The share of a cache in use at which there are enough replicas, on kv."""
    ttft_seconds: float | None = None
    """A first token that comes later is a miss; None: never."""
    itl_seconds: float | None = None
    """A token that comes longer after the one before is a miss; None: never."""
    objective: float = 0.99
    """The share of tokens that may not miss, on slo."""
    up_window_seconds: float = 0.0
    """How long more are wanted before they are started."""
    down_window_seconds: float = 300.0
    """How long fewer are wanted before one is stopped."""


TARGETS: dict[ScaleOn, str] = {
    "queue": "open_per_replica",
    "kv": "kv_target",
    "slo": "objective",
}
"""The field that `--scale-target` is, by what `--scale-on` looks at."""
LIMITS = {
    "ttft": "ttft_seconds",
    "itl": "itl_seconds",
    "up_after": "up_window_seconds",
    "down_after": "down_window_seconds",
}
"""The fields of `--scale-ttft` and so on, by the options' last part."""


def policy_of(scaling: Scaling) -> Policy:
    """A new policy, with a memory of its own.

    Raises:
        ValueError: A value is out of its range.
    """
    within: dict[ScaleOn, Policy] = {
        "queue": OpenRequests(per_replica=scaling.open_per_replica),
        "kv": KvUsage(target=scaling.kv_target),
        "slo": BurnRate(objective=scaling.objective),
    }
    return Stabilised(
        policy=within[scaling.on],
        minimum=scaling.minimum,
        maximum=scaling.maximum,
        up_window_seconds=scaling.up_window_seconds,
        down_window_seconds=scaling.down_window_seconds,
    )
