"""Kubernetes' HorizontalPodAutoscaler (autoscaling/v2) as a policy.

One call is one pass of the controller: what each metric asks for, the largest of
them, then `spec.behavior` (`hpa_behaviour.py`). The controller asks every 15 s by default.

What a metric asks for is computed as in `replica_calculator.go`, to the last integer: quantities
are whole thousandths (`500m`), averages are cut off to thousandths, the tolerance is a closed
interval around 1, and replicas are rounded up. Documented as "Algorithm details" of "Horizontal Pod
Autoscaling".

Pods that are starting have no values yet. They are taken at the target when the others ask for
fewer replicas and at zero when they ask for more, and never turn the answer around.
"""

from __future__ import annotations

import math
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far from its target a metric may be before anything is done."""

    down: float = 0.1
    up: float = 0.1

    def covers(self, ratio: float) -> bool:
        """Whether usage over target is close enough to 1."""
        return 1.0 - self.down <= ratio <= 1.0 + self.up


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """What the pods of one workload say of one metric."""

    total: int
    """Thousandths, of all that say it."""
    measured: int
    """Pods that do; neither pending nor, for CPU, unready."""
    missing: int = 0
    """Pods that run without saying it."""
    unready: int = 0
    """Pods that are pending or, for CPU, not ready."""


def replicas_by_average(
    pods: Pods, *, target: int, current: int, tolerance: Tolerance
) -> int | None:
    """A Pods metric, or a resource with an `averageValue`: so much for each pod.

    Args:
        pods: At this moment.
        target: Thousandths for each pod.
        current: Replicas that the workload is set to.
        tolerance: Of the ratio.

    Returns:
        None: no pod has said anything.

    >>> pods = Pods(total=200, measured=1)
    >>> replicas_by_average(pods, target=100, current=1, tolerance=Tolerance())
    2
    """

    def ratio(total: int, count: int) -> float:
        return total // count / target

    return _weighed(pods, ratio, target, current, tolerance)


def replicas_by_value(
    total: int, *, target: int, current: int, ready: int, tolerance: Tolerance
) -> int:
    """An Object or External metric with a `value`: one number, whatever the number of pods.

    >>> replicas_by_value(20000, target=15000, current=3, ready=3, tolerance=Tolerance())
    4
    """
    ratio = total / target
    if current == 0:
        return math.ceil(ratio)
    return current if tolerance.covers(ratio) else math.ceil(ratio * ready)


def replicas_by_share(total: int, *, target: int, current: int, tolerance: Tolerance) -> int:
    """An Object or External metric with an `averageValue`: one number, divided among the pods.

    >>> replicas_by_share(8600, target=2150, current=3, tolerance=Tolerance())
    4
    """
    if current and tolerance.covers(total / (target * current)):
        return current
    return math.ceil(total / target)


def _weighed(
    pods: Pods,
    ratio_of: Callable[[int, int], float],
    fill: int,
    current: int,
    tolerance: Tolerance,
) -> int | None:
    if pods.measured == 0:
        return None
    ratio = ratio_of(pods.total, pods.measured)
    with_unready = pods.unready > 0 and ratio > 1.0
    if not with_unready and not pods.missing:
        return current if tolerance.covers(ratio) else math.ceil(ratio * pods.measured)
    total, count = pods.total, pods.measured
    if ratio != 1.0:
        count += pods.missing
    if ratio < 1.0:
        total += fill * pods.missing
    if with_unready:
        count += pods.unready
    again = ratio_of(total, count)
    if tolerance.covers(again) or (ratio < 1.0 < again) or (again < 1.0 < ratio):
        return current
    wanted = math.ceil(again * count)
    turns = (again < 1.0 and wanted > current) or (again > 1.0 and wanted < current)
    return current if turns else wanted
