"""Bounds and patience around any policy.

Up: the smallest of the answers of the last `up_window_seconds`, so that a spike shorter than that
starts nothing. Down: the largest of the last `down_window_seconds`, so that what took minutes to
load is not thrown away for a pause. Then the step limits, and a rest after every change.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ridgeline.batching.scaling.observation import Observation, Policy


@dataclass(slots=True, kw_only=True)
class Stabilised:
    """A policy whose answers stay within bounds and do not flutter.

    Raises:
        ValueError: The bounds are no range.
    """

    policy: Policy
    minimum: int = 1
    maximum: int
    up_window_seconds: float = 0.0
    down_window_seconds: float = 300.0
    most_up: int | None = None
    """Replicas added at once; None: as many as wanted."""
    most_down: int | None = None
    cooldown_seconds: float = 0.0
    """After a change, until the next."""
    _answers: deque[tuple[float, int]] = field(default_factory=deque, init=False)
    _changed_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum or self.maximum < 1:
            raise ValueError(f"{self.minimum} to {self.maximum} replicas is no range")

    @property
    def every_seconds(self) -> float:
        """As the policy within."""
        return self.policy.every_seconds

    def desired(self, observation: Observation, now: float) -> int:
        """What the policy says, if it has said so for long enough."""
        current = observation.replicas
        self._answers.append((now, self.policy.desired(observation, now)))
        longest = max(self.up_window_seconds, self.down_window_seconds)
        while self._answers[0][0] < now - longest:
            self._answers.popleft()
        wanted = self._bounded(self._patient(current, now))
        if not self.minimum <= current <= self.maximum:
            return wanted  # a bound is broken: a replica was lost, or none was started yet
        if self._changed_at is not None and now < self._changed_at + self.cooldown_seconds:
            return current
        if wanted != current:
            self._changed_at = now
        return wanted

    def _patient(self, current: int, now: float) -> int:
        up = min(want for at, want in self._answers if at >= now - self.up_window_seconds)
        down = max(want for at, want in self._answers if at >= now - self.down_window_seconds)
        if up > current:
            return up if self.most_up is None else min(up, current + self.most_up)
        if down < current:
            return down if self.most_down is None else max(down, current - self.most_down)
        return current

    def _bounded(self, wanted: int) -> int:
        return min(self.maximum, max(self.minimum, wanted))
