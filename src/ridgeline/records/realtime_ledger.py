"""The cures of a real-time pipeline that survived measurement, and those that did not."""

from __future__ import annotations

import msgspec

from ridgeline.records.ledger import Options
from ridgeline.records.measurement import Environment
from ridgeline.records.tagged import TaggedRecord


class FrameFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one variant of a pipeline ran on recorded frames."""

    frame_seconds: float
    """Median age of a result when it came out, at a period at which no frame waits."""
    p99_seconds: float
    frames: int
    """How many frames are behind both."""
    frames_per_second: float
    """Frames that came out per second of a tight loop: what the pipeline can take."""
    stage_seconds: dict[str, float]
    """Stage → median seconds of a call."""
    missed_share: float | None
    """Share of frames that were late or dropped at the declared rate; null without a deadline."""
    ages_seconds: tuple[float, ...] = ()
    """Age of each of the frames behind the median."""
    quality: dict[str, float] = {}
    """Figures of merit by the pipeline's own judge."""

    @property
    def p99_over_p50(self) -> float:
        """How uneven frames are."""
        return self.p99_seconds / self.frame_seconds


class CureRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cure, measured side by side with the stack above it."""

    cure: str
    options: Options = {}
    watched: str
    """The statistic that was compared: `p50`, `mean` or `p99` of frame latency, or `age` of results
    at the declared rate."""
    multiplier: float
    """The stack above over the stack with this cure (above 1 is faster)."""
    ci_low: float
    ci_high: float | None
    """Null where the rounds bound nothing."""
    cumulative: float
    """Product of the multipliers of the kept rows up to and including this one."""
    frame_seconds: float
    """Median frame latency with this row, from the rounds behind the multiplier."""
    p99_over_p50: tuple[float, float] | None
    """Unevenness of frames without and with this cure; null where nothing was measured."""
    rounds: int
    verified: bool
    verification: str
    kept: bool
    reason: str
    superseded: bool = False
    """A later cure took its place: that one's multiplier stands on top of this one's."""
    costs: str = ""


class RealtimeLedger(TaggedRecord, frozen=True, kw_only=True, tag="realtime-tuning"):
    """Everything that `ridgeline realtime tune` proved about one pipeline."""

    pipeline: str
    file: str
    deadline_seconds: float | None
    baseline: FrameFigures
    tuned: FrameFigures | None
    """Null where no cure was kept."""
    rows: list[CureRow]
    """In the order tried."""
    stack_rows: list[str]
    """Names of the cures in the final stack, in the order in which they are applied."""
    cumulative: float
    """Frame latency of the baseline over that of the full stack, measured directly."""
    cumulative_ci: tuple[float, float]
    verified: bool
    verification: str
    """How the results of the whole stack compare with the baseline's."""
    skipped: dict[str, str]
    """Cure → why it was not tried."""
    environment: Environment
    complete: bool
    """False where time ran out or the job was interrupted."""
    stack: str | None
    """The path of `tuned.py`, which is the pipeline with the stack."""
    run_options: str = ""
    """Options of `ridgeline realtime run` that belong to the stack."""
    report: str | None = None
    notes: list[str] = []

    @property
    def final_rows(self) -> list[CureRow]:
        """The rows that led to the final stack, those included whose place a later one took."""
        return [row for row in self.rows if row.kept]
