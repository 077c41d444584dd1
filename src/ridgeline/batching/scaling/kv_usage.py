"""So much of each replica's KV cache in use.

The formula is the horizontal autoscaler's (Kubernetes, "Algorithm details"): replicas times usage
over target, rounded up, and no change within a tenth of the target. A cache cannot be more than
full, so one decision multiplies the fleet by 1/target at most; a flood is met in several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ridgeline.batching.scaling.observation import Observation

TOLERANCE = 0.1
"""Around the target, within which nothing changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvUsage:
    """Replicas in proportion to the KV blocks in use.

    >>> policy = KvUsage(target=0.6)
    >>> policy.desired(Observation(waiting=0, running=9, kv_usage=0.9, ready=2), now=0.0)
    3
    >>> policy.desired(Observation(waiting=0, running=9, kv_usage=0.57, ready=2), now=0.0)
    2
    """

    target: float
    """Share of the blocks, above 0 and at most 1."""
    every_seconds: float = 1.0

    def desired(self, observation: Observation, now: float) -> int:  # noqa: ARG002  as `Policy`
        """Enough that the caches are filled to the target.

        With no replica ready nothing is known of caches: one is wanted as soon as a request waits.
        """
        if observation.ready == 0:
            return max(observation.replicas, min(1, observation.waiting))
        ratio = observation.kv_usage / self.target
        if abs(ratio - 1.0) <= TOLERANCE:
            return observation.replicas
        return math.ceil(ratio * observation.ready)
