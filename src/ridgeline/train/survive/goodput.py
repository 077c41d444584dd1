"""Where the wall time of a run went over all its starts, as a sum over its events.

Between two events lies one stretch of time, and the later event says what it was: a step, a save,
an evaluation, a start. When a start begins at an earlier step than the one before had reached, the
stretches in between are moved from `productive` to `lost`: they are done again. Nothing is counted
twice or left out, so the parts add up to the wall time.

The word is that of "ML Productivity Goodput" (Google Cloud, 2024): the share of the wall time that
became progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ridgeline.records.training_run import Goodput
from ridgeline.train.survive.events import Event

_PART = {
    "checkpoint": "checkpoint",
    "evaluated": "evaluation",
    "hung": "restart",
    "rolled_back": "restart",
    "stopped": "finishing",
    "finished": "finishing",
}


@dataclass(slots=True)
class _Stretch:
    """Steps that stand so far, and how long they took."""

    first: int
    last: int
    seconds: float


@dataclass(slots=True)
class _Account:
    seconds: dict[str, float] = field(default_factory=dict)
    stretches: list[_Stretch] = field(default_factory=list)
    step: int = 0
    starts: int = 0
    launches: int = 0
    rollbacks: int = 0

    def add(self, event: Event, seconds: float) -> None:
        if event.kind == "step":
            self._step(event.step, seconds)
            return
        part = _PART.get(event.kind, "")
        if event.kind == "launched":
            self.launches += 1
            part = "away"
        elif event.kind in {"started", "ready"}:
            self.starts += event.kind == "started"
            part = "starting" if self.starts <= 1 and not self.stretches else "restart"
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds
        self.rollbacks += event.kind == "rolled_back"
        if event.kind == "ready":
            self._rewind(event.step)

    def _step(self, step: int, seconds: float) -> None:
        self.seconds["productive"] = self.seconds.get("productive", 0.0) + seconds
        self.stretches.append(_Stretch(min(self.step, step), step, seconds))
        self.step = step

    def _rewind(self, step: int) -> None:
        """Count as lost what was done beyond a step."""
        self.step = step
        lost = 0.0
        while self.stretches and self.stretches[-1].last > step:
            stretch = self.stretches.pop()
            if stretch.first < step:
                share = (stretch.last - step) / (stretch.last - stretch.first)
                kept = _Stretch(stretch.first, step, stretch.seconds * (1.0 - share))
                lost += stretch.seconds - kept.seconds
                self.stretches.append(kept)
            else:
                lost += stretch.seconds
        self.seconds["productive"] = self.seconds.get("productive", 0.0) - lost
        self.seconds["lost"] = self.seconds.get("lost", 0.0) + lost


def account(events: Sequence[Event]) -> Goodput:
    """Add up a run's events, in their order; a clock that was set back counts as standing still.

    >>> from ridgeline.train.survive.events import Event
    >>> first = [("launched", 0.0, 0), ("started", 1.0, 0), ("ready", 3.0, 0), ("step", 13.0, 10)]
    >>> again = [("started", 15.0, 0), ("ready", 17.0, 5), ("step", 27.0, 15)]
    >>> found = account([Event(kind=k, time=t, step=s) for k, t, s in first + again])
    >>> found.productive_seconds, found.lost_seconds, found.restart_seconds, found.starting_seconds
    (15.0, 5.0, 4.0, 3.0)
    """
    account = _Account()
    now = events[0].time if events else 0.0
    begun = now
    for event in events:
        later = max(now, event.time)
        account.add(event, later - now)
        now = later
    parts = account.seconds
    return Goodput(
        wall_seconds=now - begun,
        productive_seconds=parts.get("productive", 0.0),
        lost_seconds=parts.get("lost", 0.0),
        checkpoint_seconds=parts.get("checkpoint", 0.0),
        evaluation_seconds=parts.get("evaluation", 0.0),
        restart_seconds=parts.get("restart", 0.0),
        starting_seconds=parts.get("starting", 0.0),
        finishing_seconds=parts.get("finishing", 0.0),
        away_seconds=parts.get("away", 0.0),
        restarts=max(0, account.starts - max(1, account.launches)),
        rollbacks=account.rollbacks,
    )
