"""Static batching: a batch is chosen when nothing runs, and the next one when all of it has ended.

Early finishers leave their seats empty. Their blocks are freed, which is kinder than the engines
of old; what is compared is the waiting. Nobody starves that would not under the order in use.
"""

from __future__ import annotations

from ridgeline.batching.sequence import Sequence


class StaticBatches:
    """Remembers how many of the batch are still to be admitted."""

    def __init__(self, most_running: int) -> None:
        self._most = most_running
        self._open = 0

    def seats(self, running: int, waiting: list[Sequence], now: float) -> int:
        """What the present batch has left, or a new batch when nothing runs."""
        if not running and not self._open and self._may_start(waiting, now):
            self._open = min(len(waiting), self._most)
        self._open = min(self._open, len(waiting))
        return min(self._open, self._most - running)

    def admitted(self) -> None:
        """One of the batch is in."""
        self._open -= 1

    def preempted(self) -> None:
        """Its seat stays its own."""
        self._open += 1

    def starts_at(self, _waiting: list[Sequence], /) -> float | None:
        """At once."""
        return None

    def _may_start(self, waiting: list[Sequence], _now: float, /) -> bool:
        return bool(waiting)
