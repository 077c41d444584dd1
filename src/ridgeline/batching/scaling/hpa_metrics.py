"""Replicas that one metric asks for: Kubernetes' horizontal autoscaler, `replica_calculator.go`.

The arithmetic is that of its source, to the last integer: quantities are whole thousandths
(`500m`), averages are cut off to thousandths, the tolerance is a closed interval around 1, and
replicas are rounded up. Documented as "Algorithm details" of "Horizontal Pod Autoscaling".

Pods that are starting have no values yet. They are taken at the target when the others ask for
fewer replicas and at zero when they ask for more, and never turn the answer around.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


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
