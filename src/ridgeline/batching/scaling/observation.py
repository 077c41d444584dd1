"""What an autoscaler sees, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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
    """First tokens of answers so far."""
    late_first_tokens: int = 0
    """Of these, those that came later than the objective allows."""
    overdue: int = 0
    """Open requests without a first token for longer than the objective allows, at this moment."""
    next_tokens: int = 0
    """Further tokens so far."""
    late_next_tokens: int = 0
    """Of these, those that came longer after the one before than the objective allows."""

    @property
    def replicas(self) -> int:
        """That there are or will be soon; those that are being drained are gone already."""
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
