"""More replicas while the error budget burns, fewer when it does not.

The burn rate is the share of misses over the share that the objective allows: at 1 the budget is
just used up. An alert needs the same burn in a long window, so that it matters, and in a short one,
so that it is still going on (Google, "The Site Reliability Workbook", chapter 5, "Multiwindow,
Multi-Burn-Rate Alerts": 14.4 and 6, short windows a twelfth of the long ones). Its windows of hours
are for people; replicas start within minutes, so ours are minutes.

Misses say when there are too few replicas, never how many too many. So one replica goes at a time,
after a calm longest window, and only if the others would have less each than when it last burnt.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from ridgeline.batching.scaling.policies import Observation


@dataclass(frozen=True, slots=True)
class Alert:
    """How fast the budget may burn, and what is done about it."""

    long_seconds: float
    burn: float
    growth: float
    """The factor on replicas; at least one is added."""

    @property
    def short_seconds(self) -> float:
        """A twelfth, as the workbook has it."""
        return self.long_seconds / 12.0


ALERTS = (
    Alert(long_seconds=60.0, burn=14.4, growth=2.0),
    Alert(long_seconds=360.0, burn=6.0, growth=1.25),
)


@dataclass(slots=True, kw_only=True)
class BurnRate:
    """Replicas added by alerts.

    Windows begin anew when a replica comes or goes: misses of before say nothing of now.
    """

    objective: float
    """Share of tokens that are in time, such as 0.99."""
    alerts: tuple[Alert, ...] = ALERTS
    every_seconds: float = 1.0
    _seen: deque[tuple[float, Observation]] = field(default_factory=deque, init=False)
    _burnt_at: float | None = field(default=None, init=False)
    """Open requests per replica at the last alert."""

    def __post_init__(self) -> None:
        if not 0.0 < self.objective < 1.0:
            raise ValueError(f"an objective of {self.objective:g} is not between 0 and 1")

    def desired(self, observation: Observation, now: float) -> int:
        """What there is, a share more, or one less."""
        if self._seen and self._seen[-1][1].ready != observation.ready:
            self._seen.clear()
        self._seen.append((now, observation))
        longest = max(alert.long_seconds for alert in self.alerts)
        while len(self._seen) > 1 and self._seen[1][0] <= now - longest:
            self._seen.popleft()
        current = observation.replicas
        if observation.ready == 0:
            return max(current, min(1, observation.waiting))
        if observation.starting:
            return current  # what they will change is not seen yet
        busy = observation.waiting + observation.running
        for alert in self.alerts:
            if self._burns(alert, now):
                self._burnt_at = busy / current
                return max(current + 1, math.ceil(current * alert.growth))
        if now - self._seen[0][0] < longest or self.burn(longest, now) >= 1.0:
            return current
        return current - 1 if self._room_for(busy, current - 1) else current

    def burn(self, window_seconds: float, now: float) -> float:
        """Budget's burn over a window that ends `now`; of first and next tokens, the faster."""
        began = self._seen[0][1]
        for at, seen in self._seen:
            if at > now - window_seconds:
                break
            began = seen
        last = self._seen[-1][1]
        first_late = last.late_first_tokens - began.late_first_tokens + last.overdue
        first = last.first_tokens - began.first_tokens + last.overdue
        next_late = last.late_next_tokens - began.late_next_tokens
        following = last.next_tokens - began.next_tokens
        missed = max(_share(first_late, first), _share(next_late, following))
        return missed / (1.0 - self.objective)

    def _burns(self, alert: Alert, now: float) -> bool:
        if now - self._seen[0][0] < alert.short_seconds:
            return False
        windows = (alert.short_seconds, alert.long_seconds)
        return all(self.burn(window, now) >= alert.burn for window in windows)

    def _room_for(self, busy: int, replicas: int) -> bool:
        if replicas < 1:
            return busy == 0
        return self._burnt_at is None or busy / replicas < self._burnt_at


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
