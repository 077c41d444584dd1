"""So many open requests to each replica, as Ray Serve's `target_ongoing_requests`.

Those that run count with those that wait: a queue alone is empty until the engine is full, and a
fleet that is busy without a queue would be taken down. By Little's law open requests are arrival
rate times time in the system, so the answer follows the load, whatever the number of replicas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ridgeline.batching.scaling.observation import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequests:
    """Replicas in proportion to the requests that wait or run.

    >>> policy = OpenRequests(per_replica=4)
    >>> policy.desired(Observation(waiting=5, running=4, kv_usage=0.1, ready=1), now=0.0)
    3
    """

    per_replica: float
    every_seconds: float = 1.0

    def desired(self, observation: Observation, now: float) -> int:  # noqa: ARG002  as `Policy`
        """Enough that none has more than its share."""
        return math.ceil((observation.waiting + observation.running) / self.per_replica)
