"""Continuous batching: a seat is free as soon as its sequence ends.

Yu et al., "Orca" (OSDI 2022), section 3.1, where it is called iteration-level scheduling.
"""

from __future__ import annotations

from ridgeline.batching.sequence import Sequence


class Continuous:
    """Has no memory."""

    def __init__(self, most_running: int) -> None:
        self._most = most_running

    def seats(self, running: int, _waiting: list[Sequence], _now: float) -> int:
        """Those that are empty."""
        return self._most - running

    def admitted(self) -> None:
        """Seats are counted, not remembered."""

    def preempted(self) -> None:
        """As above."""

    def starts_at(self, _waiting: list[Sequence]) -> float | None:
        """No clock decides."""
        return None
