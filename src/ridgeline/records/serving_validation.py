"""How far predictions of serving are from published runs: the JSON of `validate serving`."""

from __future__ import annotations

import msgspec


class ServingRow(msgspec.Struct, frozen=True, kw_only=True):
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
    """Of the 80 % interval."""
    high: float | None = None
    error: float | None = None
    """Predicted over published, less 1."""
    kind: str = ""
    """`first_token`, `next_token` or `throughput`."""
    status: str
    """`ok`, `refused` (impossible, contradictory or unknown) or `insufficient` (too little is
    stated)."""
    reason: str = ""


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of some rows. Shares, not per cent."""

    rows: int
    """With an error."""
    median: float | None = None
    p90: float | None = None
    bias: float | None = None
    """Median of the signed errors."""
    coverage: float | None = None
    """Share of published values inside the 80 % interval."""
    mean_of_sources: float | None = None
    """Mean of the sources' medians, each counting once."""


class ServingOverall(msgspec.Struct, frozen=True, kw_only=True):
    """The table as a whole."""

    rows: int
    ok: int
    refused: int
    insufficient: int
    median: float | None
    p90: float | None
    bias: float | None
    coverage: float | None
    dense: Errors
    experts: Errors


class ServingValidation(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `--json`."""

    rows: list[ServingRow]
    by_source: dict[str, Errors]
    by_metric: dict[str, Errors]
    """Kind of metric, dense models and mixtures of experts apart."""
    overall: ServingOverall
    calibration: str
