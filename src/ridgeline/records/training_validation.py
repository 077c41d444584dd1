"""How far predictions of training are from published runs: the JSON of `validate training`."""

from __future__ import annotations

import msgspec


class TrainingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row; `published`, `predicted`, `low` and `high` are in the row's own metric."""

    row: int
    """The first row below the header is 1."""
    source: str
    model: str
    gpu: str
    n_gpus: int | None
    metric_name: str
    published: float | None = None
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    error: float | None = None
    """Predicted step time over published step time, less 1."""
    peak_memory_published: float | None = msgspec.field(default=None, name="peak_mem_published_gb")
    peak_memory_predicted: float | None = msgspec.field(default=None, name="peak_mem_predicted_gb")
    """In GiB, as drivers and frameworks print it; tensors alone where the source says so."""
    verdict: str | None = None
    status: str
    """`ok`, `refused` (contradictory or unknown) or `insufficient` (too little is stated)."""
    reason: str = ""


class TrainingErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of one source, or of sources averaged. Shares, not per cent."""

    rows: int
    """With a published time."""
    median: float | None = None
    p90: float | None = None
    bias: float | None = None
    """Median of the signed errors."""
    coverage: float | None = None
    """Share of published values inside the 80 % interval."""
    memory_rows: int = 0
    memory_median: float | None = None


class TrainingOverall(msgspec.Struct, frozen=True, kw_only=True):
    """The table as a whole; `dense` and `experts` are averages over sources."""

    rows: int
    ok: int
    refused: int
    insufficient: int
    median: float | None
    p90: float | None
    bias: float | None
    coverage: float | None
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


class TrainingValidation(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `--json`."""

    rows: list[TrainingRow]
    by_source: dict[str, TrainingErrors]
    overall: TrainingOverall
    calibration: str
