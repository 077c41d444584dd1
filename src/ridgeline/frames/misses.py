"""Whether a frame can still meet its deadline, by the times that stages took lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

from ridgeline.records.pipeline_shape import StageShape

_REMEMBERED = 9
"""Calls that a stage's time is the median of: one slow call among them changes nothing."""


class RecentTimes:
    """What a stage's calls took lately.

    Each frame that was not run because of these times forgets one of them, so that after some
    frames the stage is tried again: a stage that was slow for a while comes back.
    """

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)

    def add(self, seconds: float) -> None:
        """A call took this long."""
        self._seconds.append(seconds)

    def forget(self) -> None:
        """A call was left out."""
        if self._seconds:
            self._seconds.popleft()

    @property
    def seconds(self) -> float:
        """The median; 0 where nothing is known."""
        return median(self._seconds) if self._seconds else 0.0


class RecentStageTimes:
    """The recent times of one stage, of its call and of its cheaper call."""

    __slots__ = ("cheaper", "full", "shape")

    def __init__(self, shape: StageShape) -> None:
        self.shape = shape
        self.full = RecentTimes()
        self.cheaper = RecentTimes()

    @property
    def least(self) -> float:
        """Seconds that a frame in a hurry spends here."""
        if self.shape.on_miss in ("skip", "hold"):
            return 0.0
        return self.cheaper.seconds if self.shape.on_miss == "degrade" else self.full.seconds


def still_needed(
    stage: str, times: Mapping[str, RecentStageTimes], readers: Mapping[str, Sequence[str]]
) -> float:
    """Seconds from the start of a stage's full call to the slowest result that depends on it."""
    after: dict[str, float] = {}

    def rest(name: str) -> float:
        if name not in after:
            after[name] = max(
                (times[reader].least + rest(reader) for reader in readers.get(name, ())),
                default=0.0,
            )
        return after[name]

    return times[stage].full.seconds + rest(stage)
