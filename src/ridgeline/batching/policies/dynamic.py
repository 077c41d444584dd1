"""Dynamic batching: as static, but a batch waits until it is full or its oldest request is old.

The scheme of servers for models without a sequence to continue (Triton's dynamic batcher).
"""

from __future__ import annotations

from ridgeline.batching.policies.static import StaticBatches
from ridgeline.batching.sequence import Sequence


class DynamicBatches(StaticBatches):
    """Static batches with a start that is worth it."""

    def __init__(self, most_running: int, delay_seconds: float) -> None:
        super().__init__(most_running)
        self._delay_seconds = delay_seconds

    def starts_at(self, waiting: list[Sequence], /) -> float | None:
        """When the oldest has waited long enough."""
        arrivals = [one.queued_at for one in waiting if one.queued_at is not None]
        return min(arrivals) + self._delay_seconds if arrivals else None

    def _may_start(self, waiting: list[Sequence], now: float, /) -> bool:
        if len(waiting) >= self._most:
            return True
        start = self.starts_at(waiting)
        return start is not None and now >= start
