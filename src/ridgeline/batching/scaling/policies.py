"""What an autoscaler sees, what policies answer, and the two policies that scale in proportion."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

TOLERANCE = 0.1
"""The share around the target within which nothing changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The fleet at one moment. Counters only grow, so that each policy takes its own windows.

    >>> Observation(waiting=3, running=5, kv_usage=0.5, ready=1, starting=1).replicas
    2
    """

    waiting: int
    """Requests that are not being computed: in the engines' queues, and before any of them."""
    running: int
    """Requests that are being computed, on replicas that take new ones."""
    kv_usage: float
    """Share of KV blocks in use, 0 to 1: the mean of the replicas that take requests."""
    ready: int
    """Replicas that take requests."""
    starting: int = 0
    """Replicas that will, once they have loaded."""
    first_tokens: int = 0
    """First tokens of completions so far."""
    late_first_tokens: int = 0
    """First tokens among these that came later than the objective allows."""
    overdue: int = 0
    """Open requests without a first token for longer than the objective allows, at this moment."""
    next_tokens: int = 0
    """Further tokens so far."""
    late_next_tokens: int = 0
    """Further tokens that came longer after the one before than the objective allows."""

    @property
    def replicas(self) -> int:
        """Replicas that there are or will be soon; those that are being drained count no more."""
        return self.ready + self.starting


class Policy(Protocol):
    """Says how many replicas there should be."""

    @property
    def every_seconds(self) -> float:
        """How often it wants to be asked."""

    def desired(self, observation: Observation, now: float) -> int:
        """Replicas, ready and starting together.

        Policies remember what they saw: call it in the order of time, once for each moment.

        Args:
            observation: At `now`.
            now: Seconds on any clock that does not go back.
        """


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
    """The rest after a change until the next."""
    _answers: deque[tuple[float, int]] = field(default_factory=deque, init=False)
    _changed_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum or self.maximum < 1:
            raise ValueError(f"{self.minimum} to {self.maximum} replicas is no range")

    @property
    def every_seconds(self) -> float:
        """How often the policy within wants to be asked."""
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
