"""When a batch may take someone in: how many of those who wait may be admitted now.

Which of them that is, is the order's to say (`orders.py`).
"""

from __future__ import annotations

from typing import Protocol, get_args

from ridgeline.batching.limits import Batching, Limits
from ridgeline.batching.sequence import Sequence


class Mode(Protocol):
    """A way of batching, asked at every step and told of every admission and preemption."""

    def seats(self, running: int, waiting: list[Sequence], now: float, /) -> int:
        """How many may be admitted now."""
        ...

    def note_admission(self) -> None:
        """Note that a seat was taken."""
        ...

    def note_preemption(self) -> None:
        """Note that one who had a seat waits again."""
        ...

    def starts_at(self, waiting: list[Sequence], /) -> float | None:
        """When a batch starts though nobody new comes; None: no clock decides."""
        ...


class Continuous:
    """A seat is free as soon as its sequence ends (continuous batching).

    Yu et al., "Orca" (OSDI 2022), section 3.1, where it is called iteration-level scheduling.
    """

    def __init__(self, most_running: int) -> None:
        self._most = most_running

    def seats(self, running: int, _waiting: list[Sequence], _now: float) -> int:
        """The seats that are empty."""
        return self._most - running

    def note_admission(self) -> None:
        """Seats are counted, not remembered."""

    def note_preemption(self) -> None:
        """Seats are counted, not remembered."""

    def starts_at(self, _waiting: list[Sequence]) -> float | None:
        """None, for no clock decides."""
        return None


class StaticBatches:
    """A batch is chosen when nothing runs, the next one when all of it has ended (static batching).

    Early finishers leave their seats empty. Their blocks are freed, which is kinder than the
    engines of old; what is compared is the waiting. Nobody starves that would not under the order
    in use.
    """

    def __init__(self, most_running: int) -> None:
        self._most = most_running
        self._open = 0

    def seats(self, running: int, waiting: list[Sequence], now: float) -> int:
        """What the present batch has left, or a new batch when nothing runs."""
        if not running and not self._open and self._may_start(waiting, now):
            self._open = min(len(waiting), self._most)
        self._open = min(self._open, len(waiting))
        return min(self._open, self._most - running)

    def note_admission(self) -> None:
        """One fewer of the batch is still to be admitted."""
        self._open -= 1

    def note_preemption(self) -> None:
        """The seat stays its sequence's own."""
        self._open += 1

    def starts_at(self, _waiting: list[Sequence], /) -> float | None:
        """None, for a batch starts at once."""
        return None

    def _may_start(self, waiting: list[Sequence], _now: float, /) -> bool:
        return bool(waiting)


class DynamicBatches(StaticBatches):
    """A static batch that starts only when it is full or its oldest request is old.

    The scheme of servers for models without a sequence to continue (Triton's dynamic batcher).
    """

    def __init__(self, most_running: int, delay_seconds: float) -> None:
        super().__init__(most_running)
        self._delay_seconds = delay_seconds

    def starts_at(self, waiting: list[Sequence], /) -> float | None:
        """When the oldest has waited long enough."""
        arrivals = [one.queued_at for one in waiting if one.queued_at is not None]
        return min(arrivals) + self._delay_seconds if arrivals else None

    def _may_start(self, waiting: list[Sequence], now: float, /) -> bool:
        if len(waiting) >= self._most:
            return True
        start = self.starts_at(waiting)
        return start is not None and now >= start


def mode(limits: Limits, most_running: int) -> Mode:
    """The batching mode of these limits, with a state of its own.

    Raises:
        ValueError: There is none of that name.
    """
    match limits.batching:
        case "continuous":
            return Continuous(most_running)
        case "static":
            return StaticBatches(most_running)
        case "dynamic":
            return DynamicBatches(most_running, limits.dynamic_delay_seconds)
    raise ValueError(
        f"no batching is called {limits.batching!r}; there are {', '.join(get_args(Batching))}"
    )
