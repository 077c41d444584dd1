"""Kubernetes' HorizontalPodAutoscaler (autoscaling/v2) as a policy.

One call is one pass of the controller: the metrics' answers (`hpa_metrics.py`), the largest of
them, then `spec.behavior` (`hpa_behaviour.py`). The controller asks every 15 s by default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ridgeline.batching.scaling.hpa_behaviour import (
    DOWN,
    Behaviour,
    History,
    limited,
    limited_plainly,
    stabilised,
    stabilised_plainly,
)
from ridgeline.batching.scaling.hpa_metrics import (
    Pods,
    Tolerance,
    replicas_by_average,
    replicas_by_share,
    replicas_by_value,
)
from ridgeline.batching.scaling.policies import Observation

SYNC_SECONDS = 15.0
"""The default of `--horizontal-pod-autoscaler-sync-period`."""

SIGNALS: dict[str, Callable[[Observation], float]] = {
    "ridgeline_open_requests": lambda seen: seen.waiting + seen.running,
    "vllm_num_requests_waiting": lambda seen: seen.waiting,
    "vllm_kv_cache_usage_perc": lambda seen: seen.kv_usage * seen.ready,
}
"""Metrics by their names in manifests: sums over the replicas that take requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One entry of `spec.metrics`."""

    signal: str
    """The metric's name, one of `SIGNALS`."""
    kind: Literal["average", "share", "value"]
    """The kind of target. average: Pods. share and value: External or Object, with `averageValue`
    or `value`."""
    target: int
    """The target in thousandths."""

    def replicas(self, seen: Observation, tolerance: Tolerance) -> int | None:
        """What it asks for; None: it has no values."""
        total = thousandths(SIGNALS[self.signal](seen))
        current = seen.replicas
        if self.kind == "average":
            pods = Pods(total=total, measured=seen.ready, missing=seen.starting)
            return replicas_by_average(
                pods, target=self.target, current=current, tolerance=tolerance
            )
        if self.kind == "share":
            return replicas_by_share(
                total, target=self.target, current=current, tolerance=tolerance
            )
        return replicas_by_value(
            total, target=self.target, current=current, ready=seen.ready, tolerance=tolerance
        )


@dataclass(slots=True, kw_only=True)
class Hpa:
    """The controller of one workload."""

    maximum: int
    metrics: tuple[Metric, ...]
    minimum: int = 1
    behaviour: Behaviour | None = None
    """The limits on how fast it follows; None: the manifest has no `behavior`."""
    every_seconds: float = SYNC_SECONDS
    history: History = field(default_factory=History)
    _began: bool = field(default=False, init=False)

    def desired(self, observation: Observation, now: float) -> int:
        """The replicas after one pass of the controller."""
        current = observation.replicas
        if not self._began:  # the first answer is what there is, so that nothing shrinks at once
            self.history.answers.append((now, current))
            self._began = True
        wanted = self._next(observation, now)
        if wanted != current and self.behaviour is not None:
            self.history.note_change(current, wanted, now)
        self.history.forget(now - self._longest_seconds())
        return wanted

    def _next(self, observation: Observation, now: float) -> int:
        current = observation.replicas
        if current == 0 and self.minimum != 0:
            return 0  # someone switched it off by hand
        if not self.minimum <= current <= self.maximum:
            return min(self.maximum, max(self.minimum, current))
        tolerance = self._tolerance()
        asked = largest([one.replicas(observation, tolerance) for one in self.metrics], current)
        if asked is None:
            return current
        bounds = (self.minimum, self.maximum)
        if self.behaviour is None:
            wanted = stabilised_plainly(self.history, wanted=asked, now=now)
            return limited_plainly(bounds=bounds, current=current, wanted=wanted)
        wanted = stabilised(self.history, self.behaviour, current=current, wanted=asked, now=now)
        return limited(
            self.history, self.behaviour, bounds=bounds, current=current, wanted=wanted, now=now
        )

    def _tolerance(self) -> Tolerance:
        plain = Tolerance()
        if self.behaviour is None:
            return plain
        down, up = self.behaviour.down.tolerance, self.behaviour.up.tolerance
        return Tolerance(
            down=plain.down if down is None else down, up=plain.up if up is None else up
        )

    def _longest_seconds(self) -> float:
        if self.behaviour is None:
            return DOWN.window_seconds
        sides = (self.behaviour.up, self.behaviour.down)
        windows = [side.window_seconds for side in sides]
        return max(windows + [rate.period_seconds for side in sides for rate in side.rates])


def largest(answers: Sequence[int | None], current: int) -> int | None:
    """The largest answer of several metrics; None: nothing may be done.

    With a metric that has no values the others may ask for more replicas, but not for fewer.

    >>> largest([2, 5], 3), largest([5, None], 3), largest([2, None], 3)
    (5, 5, None)
    """
    known = [one for one in answers if one is not None]
    if not known:
        return None
    most = max(known)
    return None if len(known) < len(answers) and most < current else most


def thousandths(value: float) -> int:
    """A value as quantities are read: rounded up to whole thousandths.

    >>> thousandths(0.7), thousandths(2.0001)
    (700, 2001)
    """
    return -int(-round(value * 1000, 6) // 1)
