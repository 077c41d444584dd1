"""What an A/B run found, round by round."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.measure.statistics.intervals import RatioInterval
from ridgeline.measure.statistics.sequential import NOTHING_KNOWN, interval_of
from ridgeline.measure.wire import Updates
from ridgeline.records import Site


@dataclass(slots=True)
class ABRun:
    """What an A/B run found. Ratios are time of A over time of B: above 1, B is faster."""

    interval: RatioInterval = NOTHING_KNOWN
    a_rounds: list[float] = field(default_factory=list)
    """Mean seconds per step of A, by round."""
    b_rounds: list[float] = field(default_factory=list)
    a_cpu_rounds: list[float] = field(default_factory=list)
    """Mean CPU seconds per step of A's process, by round; none on a GPU."""
    b_cpu_rounds: list[float] = field(default_factory=list)
    a_steps: list[float] = field(default_factory=list)
    b_steps: list[float] = field(default_factory=list)
    a_losses: list[float] = field(default_factory=list)
    b_losses: list[float] = field(default_factory=list)
    a_updates: Updates = field(default_factory=Updates)
    """What the optimizers of A stepped by in its first steps."""
    b_updates: Updates = field(default_factory=Updates)
    b_peak_memory_bytes: int = 0
    b_non_finite: int = 0
    b_places: dict[str, list[Site]] = field(default_factory=dict)
    """Technique of B → the lines of the script that it took effect at."""
    startup_seconds: float | None = None
    """How much longer B took to reach its pace than A; None: that was not seen, or not clearly."""
    had_no_effect: bool = False
    refusal: str = ""
    """Why it had no effect, where B's techniques say so."""
    too_short: str = ""
    """Why there were no rounds, where it was the script that ended."""

    @property
    def cpu_interval(self) -> RatioInterval:
        """The ratio of CPU times, which other programs touch less than times of steps.

        Nothing is known where they were not told in every round.
        """
        if len(self.a_cpu_rounds) != self.rounds:
            return NOTHING_KNOWN
        return interval_of(self.a_cpu_rounds, self.b_cpu_rounds)

    @property
    def rounds(self) -> int:
        """Pairs of blocks that count."""
        return len(self.a_rounds)

    def forget_after(self, rounds: int) -> None:
        """Keep the first rounds only: the later ones were of other blocks."""
        for kept in (self.a_rounds, self.b_rounds, self.a_cpu_rounds, self.b_cpu_rounds):
            del kept[rounds:]
