"""How far predictions of serving are from published runs: the JSON of `validate serving`."""

from __future__ import annotations

from ridgeline.records.finite import Computed
from ridgeline.records.validation import Errors, Overall, ValidationRow


class ServingRow(ValidationRow, frozen=True, kw_only=True):
    """One metric of one run."""

    kind: str = ""
    """`first_token`, `next_token` or `throughput`."""
    status: str
    """`ok`, `refused` (impossible, contradictory or unknown) or `insufficient` (too little is
    stated)."""
    reason: str = ""


class ServingErrors(Errors, frozen=True, kw_only=True):
    """Errors of some rows."""

    mean_of_sources: float | None = None
    """Mean of the sources' medians, each counting once."""


class ServingOverall(Overall, frozen=True, kw_only=True):
    """The table as a whole."""

    dense: ServingErrors
    experts: ServingErrors


class ServingValidation(
    Computed, frozen=True, kw_only=True, tag_field="record", tag="serving-validation"
):
    """The document of `--json`."""

    rows: list[ServingRow]
    by_source: dict[str, ServingErrors]
    by_metric: dict[str, ServingErrors]
    """Kind of metric, dense models and mixtures of experts apart."""
    overall: ServingOverall
    calibration: str
