"""What the warm-up frames spared those that count: page faults and first calls."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

from ridgeline import quantity
from ridgeline.records.realtime_run import SteadyMeasure

NAME = "warm-up"


class WarmUp:
    """Counts page faults before and after the frames that warm up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: list[tuple[float, int]] = []

    def mark(self) -> None:
        """Called at the start, after the warm-up and at the end."""
        self._marks.append((self._clock(), _page_faults()))

    @property
    def measure(self) -> SteadyMeasure:
        """Time and page faults of the warm-up, and page faults since."""
        if len(self._marks) < 2:
            detail = "no frames were run before those that count"
            return SteadyMeasure(name=NAME, granted=False, detail=detail)
        (start, before), (warm, then), *rest = self._marks
        _, after = rest[0] if rest else (0.0, _page_faults())
        return SteadyMeasure(
            name=NAME,
            granted=True,
            detail=f"{quantity.seconds(warm - start)} and {then - before:,} page faults before "
            f"the frames that count, {after - then:,} in them",
        )


def _page_faults() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt + used.ru_majflt
