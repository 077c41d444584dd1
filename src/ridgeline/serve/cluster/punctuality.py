"""How many tokens come in time: what the autoscaler's objective is judged by."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ridgeline.serve.messages import Delta


@dataclass(slots=True, kw_only=True)
class Punctuality:
    """Counts tokens and those that miss their limit, of one router's requests.

    Of tokens that come together, all but the first took no time.
    """

    ttft_seconds: float | None = None
    """From the request's coming to the first token of an answer; None: never late."""
    itl_seconds: float | None = None
    """From one token of an answer to the next; None: never late."""
    first_tokens: int = 0
    late_first_tokens: int = 0
    next_tokens: int = 0
    late_next_tokens: int = 0
    clock: Callable[[], float] = time.monotonic
    _without: dict[str, float] = field(default_factory=dict, init=False)
    """Requests without a first token, and when they came; the oldest first."""

    @contextlib.contextmanager
    def request(self, request_id: str) -> Iterator[Request]:
        """A request is open."""
        now = self.clock()
        self._without[request_id] = now
        try:
            yield Request(self, request_id, now)
        finally:
            self._without.pop(request_id, None)

    def overdue(self) -> int:
        """Open requests without a first token for longer than allowed."""
        if self.ttft_seconds is None:
            return 0
        since = self.clock() - self.ttft_seconds
        return sum(came < since for came in self._without.values())

    def first(self, request_id: str, waited_seconds: float) -> None:
        """The first token of an answer."""
        self._without.pop(request_id, None)
        self.first_tokens += 1
        if self.ttft_seconds is not None and waited_seconds > self.ttft_seconds:
            self.late_first_tokens += 1

    def further(self, count: int, waited_seconds: float) -> None:
        """Tokens that came together, after others of the answer."""
        self.next_tokens += count
        if self.itl_seconds is not None and waited_seconds > self.itl_seconds:
            self.late_next_tokens += 1


@dataclass(slots=True)
class Request:
    """One open request; each of its answers has a first token of its own."""

    counts: Punctuality
    request_id: str
    came: float
    last: dict[int, float] = field(default_factory=dict)
    """By answer: when its last tokens came."""

    def note(self, delta: Delta) -> None:
        """Tokens have come."""
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
