"""How fast the horizontal autoscaler may follow its metrics: `spec.behavior` of autoscaling/v2.

As `horizontal.go` of Kubernetes does it: first the stabilisation windows (the lowest recent
answer on the way up, the highest on the way down), then the rates (each policy allows so many pods
or percent within its period, counted from what there was when the period began).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rate:
    """A policy that allows at most so much change within a period."""

    kind: Literal["Pods", "Percent"]
    value: int
    period_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of one direction."""

    rates: tuple[Rate, ...]
    select: Literal["Max", "Min", "Disabled"] = "Max"
    """The rate that holds: the one that allows the most change, the least, or no change at all."""
    window_seconds: int
    tolerance: float | None = None
    """The tolerance of this direction; None: the controller's own."""


UP = Rules(rates=(Rate("Pods", 4, 15), Rate("Percent", 100, 15)), window_seconds=0)
DOWN = Rules(rates=(Rate("Percent", 100, 15),), window_seconds=300)
"""What the server fills in where `behavior` says less (`pkg/apis/autoscaling/v2/defaults.go`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The rules of both directions."""

    up: Rules = UP
    down: Rules = DOWN


@dataclass(slots=True)
class History:
    """What the controller remembers of one workload."""

    answers: list[tuple[float, int]] = field(default_factory=list)
    """What the metrics asked for."""
    added: list[tuple[float, int]] = field(default_factory=list)
    removed: list[tuple[float, int]] = field(default_factory=list)
    """Changes that were made."""

    def note_change(self, before: int, after: int, now: float) -> None:
        """The workload was scaled."""
        if after > before:
            self.added.append((now, after - before))
        else:
            self.removed.append((now, before - after))

    def forget(self, before: float) -> None:
        """What no window or period can reach any more."""
        for log in (self.answers, self.added, self.removed):
            log[:] = [entry for entry in log if entry[0] >= before]


def stabilised(
    history: History, behaviour: Behaviour, *, current: int, wanted: int, now: float
) -> int:
    """`wanted`, or the recent answer that is closest to changing nothing; `wanted` is noted."""
    recent_up = [one for at, one in history.answers if at > now - behaviour.up.window_seconds]
    recent_down = [one for at, one in history.answers if at > now - behaviour.down.window_seconds]
    history.answers.append((now, wanted))
    lowest, highest = min([wanted, *recent_up]), max([wanted, *recent_down])
    return min(max(current, lowest), highest)


def stabilised_plainly(history: History, *, wanted: int, now: float) -> int:
    """What `stabilised` gives where the manifest has no `behavior`: down alone, 300 s."""
    recent = [one for at, one in history.answers if at >= now - DOWN.window_seconds]
    history.answers.append((now, wanted))
    return max([wanted, *recent])


def limited(
    history: History,
    behaviour: Behaviour,
    *,
    bounds: tuple[int, int],
    current: int,
    wanted: int,
    now: float,
) -> int:
    """`wanted` as far as rates and bounds allow."""
    minimum, maximum = bounds
    if wanted > current:
        highest = max(current, _highest(history, behaviour.up, current, now))
        return min(wanted, highest, maximum)
    if wanted < current:
        lowest = min(current, _lowest(history, behaviour.down, current, now))
        return max(wanted, lowest, minimum)
    return wanted


def limited_plainly(*, bounds: tuple[int, int], current: int, wanted: int) -> int:
    """What `limited` gives where the manifest has no `behavior`: at most double, or four."""
    minimum, maximum = bounds
    return max(minimum, min(wanted, maximum, max(2 * current, 4)))


def _highest(history: History, rules: Rules, current: int, now: float) -> int:
    if rules.select == "Disabled":
        return current
    allowed = []
    for rate in rules.rates:
        began = _began(history, rate, current, now)
        more = began + rate.value
        if rate.kind == "Percent":  # rounded up, or one pod could never become two
            more = math.ceil(began * (1 + rate.value / 100))
        allowed.append(more)
    return min(allowed) if rules.select == "Min" else max(allowed)


def _lowest(history: History, rules: Rules, current: int, now: float) -> int:
    if rules.select == "Disabled":
        return current
    allowed = []
    for rate in rules.rates:
        began = _began(history, rate, current, now)
        fewer = began - rate.value
        if rate.kind == "Percent":
            fewer = int(began * (1 - rate.value / 100))
        allowed.append(fewer)
    return max(allowed) if rules.select == "Min" else min(allowed)


def _began(history: History, rate: Rate, current: int, now: float) -> int:
    """Replicas when the rate's period began."""
    since = now - rate.period_seconds
    added = sum(count for at, count in history.added if at > since)
    removed = sum(count for at, count in history.removed if at > since)
    return current - added + removed
