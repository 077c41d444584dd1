"""The replicas that there are and may be, and what scales them.

States and choices are those of `serve/cluster/autoscaler.py`: a draining replica takes nothing new
and goes when it has nothing left; if more are wanted meanwhile, it is the first to stay; who does
not serve yet, then who has the fewest requests open, is the first to go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from ridgeline.batching.scaling.policies import Observation
from ridgeline.batching.scaling.settings import Scaling
from ridgeline.plan.simulate.replica import Replica

State = Literal["stopped", "starting", "ready", "draining"]


@dataclass(slots=True, eq=False)
class Slot:
    """One replica that may be."""

    index: int
    state: State = "stopped"
    began: float = 0.0
    replica: Replica | None = None
    """The engine, in states other than stopped and starting."""
    pending: dict[int, int] = field(default_factory=dict)
    """Request → its uncached prompt tokens, until its first token."""


@dataclass(slots=True)
class Slots:
    """All replicas that there may be."""

    slots: list[Slot]
    make: Callable[[int], Replica]
    """A new engine of the slot with that index, empty."""
    startup_seconds: float
    steps: int = 0
    """Steps of replicas that have ended; the next two fields count those as well."""
    preemptions: int = 0
    replica_seconds: float = 0.0
    most: int = 0
    changes: list[tuple[float, int]] = field(default_factory=list)
    """When the number of replicas that exist changed, and to what."""

    @property
    def ready(self) -> list[Slot]:
        """The slots that take requests."""
        return [one for one in self.slots if one.state == "ready"]

    def start(self, slot: Slot, now: float) -> None:
        """Begin to load a replica."""
        slot.state, slot.began = "starting", now
        self._note(now)

    def mark_ready(self, slot: Slot) -> None:
        """Let a replica take requests from now on."""
        slot.state, slot.replica, slot.pending = "ready", self.make(slot.index), {}

    def end_if_drained(self, slot: Slot, now: float) -> None:
        """A draining replica goes with its last request."""
        if slot.state == "draining" and slot.replica is not None and not slot.replica.open:
            self._stop(slot, now)

    def follow(self, wanted: int, now: float) -> list[Slot]:
        """Start or drain as many as it takes; those that were started."""
        there = [one for one in self.slots if one.state in ("starting", "ready")]
        started = []
        for _ in range(wanted - len(there)):
            slot = self._add(now)
            if slot is not None and slot.state == "starting":
                started.append(slot)
        for slot in sorted(there, key=_worth)[: max(0, len(there) - wanted)]:
            if slot.state == "starting":
                self._stop(slot, now)
            else:
                slot.state = "draining"
                self.end_if_drained(slot, now)
        return started

    def finish(self, now: float) -> None:
        """The run is over."""
        for slot in self.slots:
            if slot.state != "stopped":
                self._stop(slot, now)

    def observation(self, counts: Counts, now: float, backlog: int) -> Observation:
        """What the policy is told."""
        ready = [one.replica for one in self.ready if one.replica is not None]
        waiting = sum(len(one.scheduler.waiting) for one in ready)
        busy = sum(len(one.open) for one in ready)
        return Observation(
            waiting=waiting + backlog,
            running=busy - waiting,
            kv_usage=sum(one.cache.usage for one in ready) / len(ready) if ready else 0.0,
            ready=len(ready),
            starting=sum(one.state == "starting" for one in self.slots),
            first_tokens=counts.first_tokens,
            late_first_tokens=counts.late_first_tokens,
            overdue=counts.overdue(now),
            next_tokens=counts.next_tokens,
            late_next_tokens=counts.late_next_tokens,
        )

    def _add(self, now: float) -> Slot | None:
        for slot in self.slots:
            if slot.state == "draining":
                slot.state = "ready"
                return slot
        for slot in self.slots:
            if slot.state == "stopped":
                self.start(slot, now)
                return slot
        return None

    def _stop(self, slot: Slot, now: float) -> None:
        self.replica_seconds += now - slot.began
        if slot.replica is not None:
            self.steps += slot.replica.steps
            self.preemptions += slot.replica.scheduler.counters.preemptions
        slot.state, slot.replica = "stopped", None
        self._note(now)

    def _note(self, now: float) -> None:
        count = sum(one.state != "stopped" for one in self.slots)
        self.most = max(self.most, count)
        self.changes.append((now, count))


@dataclass(slots=True)
class Counts:
    """Tokens in time and late, as the autoscaler of `serve/` counts them."""

    scaling: Scaling | None
    first_tokens: int = 0
    late_first_tokens: int = 0
    next_tokens: int = 0
    late_next_tokens: int = 0
    without: dict[int, float] = field(default_factory=dict)
    """Requests without a first token, and when they came."""

    def overdue(self, now: float) -> int:
        """Open requests without a first token for longer than allowed."""
        if self.scaling is None or self.scaling.ttft_seconds is None:
            return 0
        since = now - self.scaling.ttft_seconds
        return sum(came < since for came in self.without.values())

    def first(self, request: int, now: float) -> None:
        """Count the first token of a completion."""
        came = self.without.pop(request)
        limit = self.scaling.ttft_seconds if self.scaling else None
        self.first_tokens += 1
        self.late_first_tokens += limit is not None and now - came > limit

    def further(self, waited_seconds: float, count: int) -> None:
        """Count further tokens, each so long after the one before."""
        limit = self.scaling.itl_seconds if self.scaling else None
        self.next_tokens += count
        if limit is not None and waited_seconds > limit:
            self.late_next_tokens += count


def _worth(slot: Slot) -> tuple[bool, int]:
    """The least goes first."""
    return slot.state == "ready", len(slot.replica.open) if slot.replica else 0
