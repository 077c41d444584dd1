"""What a tuning job's budget of wall time is spent on: the search, and the proof at its end.

Nothing is begun that cannot end in time: a cure takes at least as long to start as the quickest
process did, a block of frames as long as its frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic

from ridgeline.realtime.cures import CureStage
from ridgeline.realtime.tuning.side import WARMUP

PROOF_SHARE = 0.15
"""Share of the budget that is kept for the last proof where that suffices."""
MOST_PROOF_SHARE = 0.4
"""Share that the proof of a slow pipeline gets at most: its blocks are then shorter."""
RUN_SHARE = 0.15
"""Share that is kept, before that, for cures of how a pipeline is run: quick to try, and no result
changes."""
FEWEST_FRAMES = 8
"""Frames of the shortest block."""


def block_seconds(frames: int, period_seconds: float) -> float:
    """How long a block of frames takes, those that warm up included."""
    return (frames + WARMUP) * period_seconds


@dataclass(slots=True)
class TimeBudget:
    """The budget, counted from when this was made."""

    seconds: float
    proof_seconds: float = 0.0
    """What the last proof is expected to take."""
    _began: float = field(default_factory=monotonic)
    _openings: list[float] = field(default_factory=list)

    @property
    def end(self) -> float:
        """When all has to be over, on `monotonic`'s clock."""
        return self._began + self.seconds

    @property
    def left(self) -> float:
        """How many seconds are left of it."""
        return self.end - monotonic()

    def note_opening(self, seconds: float) -> None:
        """A process with a variant of the pipeline took so long to start."""
        self._openings.append(seconds)

    def end_of(self, stage: CureStage) -> float:
        """When trying a cure of that stage has to end, on `monotonic`'s clock."""
        share = min(max(PROOF_SHARE, self.proof_seconds / self.seconds), MOST_PROOF_SHARE)
        later = share + (0.0 if stage is CureStage.RUN else RUN_SHARE)
        return self._began + (1 - later) * self.seconds

    def late_for(self, stage: CureStage, round_seconds: float) -> bool:
        """Whether a cure of that stage cannot be started and timed once in time."""
        least = min(self._openings, default=0.0) + round_seconds
        return monotonic() + least > self.end_of(stage)
