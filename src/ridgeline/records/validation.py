"""What validations of predictions have in common, of training and of serving."""

from __future__ import annotations

from ridgeline.records.finite import Computed


class ValidationRow(Computed, frozen=True, kw_only=True):
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
    """The lower end of the 80 % interval."""
    high: float | None = None
    error: float | None = None
    """Predicted over published, less 1; of training, step time over step time."""


class Errors(Computed, frozen=True, kw_only=True):
    """Errors of some rows. Shares, not per cent."""

    rows: int
    """Rows that have an error."""
    median: float | None = None
    p90: float | None = None
    bias: float | None = None
    """Median of the signed errors."""
    coverage: float | None = None
    """Share of published values inside the 80 % interval."""


class Overall(Computed, frozen=True, kw_only=True):
    """A table as a whole."""

    rows: int
    ok: int
    refused: int
    insufficient: int
    median: float | None
    p90: float | None
    bias: float | None
    coverage: float | None
