"""How far predictions of training are from published runs: the JSON of `validate training`."""

from __future__ import annotations

import msgspec

from ridgeline.records.finite import Computed
from ridgeline.records.validation import Errors, Overall, ValidationRow


class TrainingRow(ValidationRow, frozen=True, kw_only=True):
    """One published training run."""

    peak_memory_published: float | None = msgspec.field(default=None, name="peak_mem_published_gb")
    peak_memory_predicted: float | None = msgspec.field(default=None, name="peak_mem_predicted_gb")
    """In GiB, as drivers and frameworks print it; tensors alone where the source says so."""
    verdict: str | None = None
    status: str
    """`ok`, `refused` (contradictory or unknown) or `insufficient` (too little is stated)."""
    reason: str = ""


class TrainingErrors(Errors, frozen=True, kw_only=True):
    """Errors of one source, or of sources averaged."""

    memory_rows: int = 0
    memory_median: float | None = None


class TrainingOverall(Overall, frozen=True, kw_only=True):
    """The table as a whole; `dense` and `experts` are averages over sources."""

    dense: TrainingErrors
    experts: TrainingErrors
    memory_rows: int
    memory_median: float | None
    oom_rows: int
    oom_right: int
    regret_groups: int
    """Sets of rows that differ in their layout only."""
    regret_median: float | None
    """How much slower the layout is that we would have picked than the measured best."""


class TrainingValidation(
    Computed, frozen=True, kw_only=True, tag_field="record", tag="training-validation"
):
    """The document of `--json`."""

    rows: list[TrainingRow]
    by_source: dict[str, TrainingErrors]
    overall: TrainingOverall
    calibration: str
