"""How long an A/B run may take, and when what it shows decides it.

A question has its share of the budget for rounds. Where these show a gain worth having that is
not proven yet, they may go on for as long as a start of the script takes: the next question costs
that before its first round, and leaves this one unanswered. Rounds after a look count for nothing
before the next one is reached: at each look it is asked whether there is time for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic

from ridgeline.measure.statistics.intervals import RatioInterval
from ridgeline.measure.statistics.sequential import NOTHING_KNOWN

PROMISING = 1.1
"""Gain from which rounds go on that have not proved it yet: a smaller one takes too many."""


def silent(text: str) -> None:
    """Nobody wants to know."""


class ABPlan:
    """Limits of one A/B run and how to decide early."""

    def __init__(
        self,
        *,
        threshold: float,
        seconds: float,
        deadline: float = math.inf,
        resident: bool = True,
        on_progress: Callable[[str], None] = silent,
        within: float = math.inf,
        least_worth: float = 1.0,
    ) -> None:
        self.threshold = threshold
        self.seconds = seconds
        """For the rounds; starting, compiling and warming up do not count."""
        self.deadline = deadline
        """When even the starts must be over, on `monotonic`'s clock."""
        self.resident = resident
        self.on_progress = on_progress
        self.within = within
        """A gain counts as decided only once its interval is so narrow: upper end over lower."""
        self.least_worth = least_worth
        """A gain that is smaller beyond doubt is not asked about any longer."""

        self._rounds_until = math.inf
        self._start_seconds = 0.0

    def begin(self, start_seconds: float = 0.0) -> None:
        """Both sides are warm, B in so many seconds from its start: the rounds begin."""
        self._start_seconds = start_seconds
        if math.isinf(self._rounds_until):
            self._rounds_until = monotonic() + self.seconds

    def pause(self) -> None:
        """The sides start once more, which is no part of the time for rounds."""
        if math.isfinite(self._rounds_until):
            self.seconds = min(self.seconds, max(0.0, self._rounds_until - monotonic()))
            self._rounds_until = math.inf

    @property
    def left_seconds(self) -> float:
        """What is left for rounds."""
        return min(self.deadline, self._rounds_until) - monotonic()

    def is_over(self, seen: RatioInterval = NOTHING_KNOWN) -> bool:
        """Is the time for this A/B run over, by what its rounds show?"""
        return not self.has_time_for(0.0, seen)

    def has_time_for(self, seconds: float, seen: RatioInterval = NOTHING_KNOWN) -> bool:
        """May rounds that show this go on for so long?"""
        until = self._rounds_until
        if seen.ratio >= PROMISING and seen.low <= 1 + self.threshold:
            until += self._start_seconds
        return self.seconds > 0 and monotonic() + seconds <= min(self.deadline, until)

    def give_up(self) -> None:
        """The next look is out of reach: no more rounds."""
        self.seconds = 0.0

    def is_decided(self, interval: RatioInterval) -> bool:
        """Clearly a gain, or clearly not one that is worth the time to tell it from none."""
        narrow = interval.low > 0 and interval.high <= self.within * interval.low
        clear_gain = interval.low > 1 + self.threshold and narrow
        return clear_gain or interval.high < max(1 + self.threshold, self.least_worth)
