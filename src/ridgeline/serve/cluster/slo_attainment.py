"""How many tokens come in time: the SLO attainment by which the autoscaler's policy is judged."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ridgeline.serve.messages import Delta


@dataclass(slots=True, kw_only=True)
class SloAttainment:
    """Counts tokens and those that miss their limit, of one router's requests.

    Of tokens that come together, all but the first took no time.
    """

    ttft_seconds: float | None = None
    """The limit from the request's coming to a completion's first token; None: never late."""
    itl_seconds: float | None = None
    """The limit from one token of a completion to the next; None: never late."""
    first_tokens: int = 0
    late_first_tokens: int = 0
    next_tokens: int = 0
    late_next_tokens: int = 0
    clock: Callable[[], float] = time.monotonic
    _without: dict[str, float] = field(default_factory=dict, init=False)
    """Requests without a first token, and when they came; the oldest first."""

    def begin(self, request_id: str) -> TimedRequest:
        """Note that a request is open."""
        now = self._without[request_id] = self.clock()
        return TimedRequest(self, request_id, now)

    def overdue(self) -> int:
        """Open requests without a first token for longer than allowed."""
        if self.ttft_seconds is None:
            return 0
        since = self.clock() - self.ttft_seconds
        return sum(came < since for came in self._without.values())

    def forget(self, request_id: str) -> None:
        """Wait for a request's first token no longer; it came, or never will."""
        self._without.pop(request_id, None)

    def first(self, request_id: str, waited_seconds: float) -> None:
        """Count the first token of a completion."""
        self.forget(request_id)
        self.first_tokens += 1
        if self.ttft_seconds is not None and waited_seconds > self.ttft_seconds:
            self.late_first_tokens += 1

    def further(self, count: int, waited_seconds: float) -> None:
        """Count tokens that came together, after others of the completion."""
        self.next_tokens += count
        if self.itl_seconds is not None and waited_seconds > self.itl_seconds:
            self.late_next_tokens += 1


@dataclass(slots=True)
class TimedRequest:
    """One open request; each of its completions has a first token of its own."""

    counts: SloAttainment
    request_id: str
    came: float
    last: dict[int, float] = field(default_factory=dict)
    """When the last tokens of each completion came."""

    def note(self, delta: Delta) -> None:
        """Count tokens that have come."""
        if not delta.tokens:
            return
        now, before = self.counts.clock(), self.last.get(delta.index)
        self.last[delta.index] = now
        count = len(delta.tokens)
        if before is None:
            self.counts.first(self.request_id, now - self.came)
            count -= 1
            before = now
        if count:
            self.counts.further(count, now - before)

    def end(self) -> None:
        """Note that the request is open no longer."""
        self.counts.forget(self.request_id)
