"""KEDA's ScaledObject as a policy, as its source of August 2026 has it.

KEDA itself only switches a workload on and off: every `pollingInterval` it looks whether a trigger
is above its activation threshold, and takes the workload to zero (or `idleReplicaCount`) once none
has been for `cooldownPeriod`. Between one and many, a HorizontalPodAutoscaler that KEDA makes
scales on External metrics. Sources: KEDA's `pkg/scaling/executor/scale_scaledobjects.go` and
`controllers/keda/hpa.go`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.batching.scaling.hpa import SIGNALS, SYNC_SECONDS, Hpa, Metric
from ridgeline.batching.scaling.hpa_behaviour import Behaviour
from ridgeline.batching.scaling.policies import Observation

POLLING_SECONDS = 30.0
COOLDOWN_SECONDS = 300.0
MOST = 100
"""`maxReplicaCount` where nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """One entry of `spec.triggers`."""

    metric: Metric
    activation: float = 0.0
    """The trigger is active above it, not at it."""

    def active(self, seen: Observation) -> bool:
        """Whether it keeps the workload on."""
        return SIGNALS[self.metric.signal](seen) > self.activation


@dataclass(slots=True, kw_only=True)
class Keda:
    """The operator and the autoscaler of one ScaledObject."""

    triggers: tuple[Trigger, ...]
    minimum: int = 0
    maximum: int = MOST
    idle: int | None = None
    """Replicas while nothing is active; None: `minimum`."""
    polling_seconds: float = POLLING_SECONDS
    cooldown_seconds: float = COOLDOWN_SECONDS
    first_cooldown_seconds: float = 0.0
    """`initialCooldownPeriod`, from the object's making until it may go to zero unused."""
    behaviour: Behaviour | None = None
    every_seconds: float = 1.0
    _hpa: Hpa = field(init=False)
    _made_at: float | None = field(default=None, init=False)
    _active_at: float | None = field(default=None, init=False)
    _polls_at: float = field(default=0.0, init=False)
    _syncs_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._hpa = Hpa(
            minimum=max(1, self.minimum),
            maximum=self.maximum,
            metrics=tuple(one.metric for one in self.triggers),
            behaviour=self.behaviour,
        )

    def desired(self, observation: Observation, now: float) -> int:
        """What operator and autoscaler, each when it is due, make of the workload."""
        if self._made_at is None:
            self._made_at = self._polls_at = self._syncs_at = now
        wanted = observation.replicas
        if now >= self._polls_at:
            self._polls_at += self.polling_seconds
            wanted = self._switched(observation, wanted, now)
        if now >= self._syncs_at and wanted == observation.replicas:
            self._syncs_at += SYNC_SECONDS
            wanted = self._hpa.desired(observation, now)
        return wanted

    def _switched(self, observation: Observation, current: int, now: float) -> int:
        if any(one.active(observation) for one in self.triggers):
            self._active_at = now
            asleep = current == 0 or (self.idle is not None and current < self.minimum)
            return max(1, self.minimum) if asleep else current
        resting = self.minimum if self.idle is None else self.idle
        if (self.idle is not None and current > self.idle) or (current > 0 and self.minimum == 0):
            return resting if self._cooled(now) else current
        if self.idle is None and current < self.minimum:
            return self.minimum
        return current

    def _cooled(self, now: float) -> bool:
        if self._active_at is None:
            assert self._made_at is not None
            return self._made_at + self.first_cooldown_seconds < now
        return self._active_at + self.cooldown_seconds < now
