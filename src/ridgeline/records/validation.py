"""How far predictions are from published runs: what `ridgeline validate` hands out."""

from __future__ import annotations

import msgspec

from ridgeline.records.finite import Computed

CONVENTIONS = (
    "an error is |predicted / published - 1|, in the row's own metric (of training: in step time)",
    "pooled figures count every row once; means over sources count every source once",
    "a bias is of speed: above 0 is predicted too fast, for times and rates alike",
    "refused and insufficient rows are counted, and in no other figure; so are saturated ones",
)


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
    """Median of predicted over published *speed*, less 1: above 0 is predicted too fast, for times
    and for rates alike."""
    coverage: float | None = None
    """Share of published values inside the 80 % interval."""
    width: float | None = None
    """Mean over rows of the interval's upper end over the prediction."""
    mean_of_sources: float | None = None
    """Mean of the sources' medians, each counting once; `median` and `p90` are over rows."""
    p90_of_sources: float | None = None
    """Mean of the sources' 90th percentiles, each counting once."""


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
    conventions: tuple[str, ...] = CONVENTIONS
    """How the figures are meant."""


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


class ServingOverall(Overall, frozen=True, kw_only=True):
    """The table as a whole."""

    dense: ServingErrors
    experts: ServingErrors
    saturated: int
    """Times to the first token of saturated servers, which are in no other figure."""


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
    conventions: tuple[str, ...] = CONVENTIONS
    """How the figures are meant."""


class VisionRow(ValidationRow, frozen=True, kw_only=True):
    """One published run of a vision model, predicted in one way."""

    kind: str = ""
    """`training`, or `gpu` or `cpu` with `throughput` or `latency` (batches below 16)."""
    software: str = ""
    """The class of software."""
    left_out: str = ""
    """What the coefficients have not seen: the row's `device` or its `family`; else empty."""
    status: str
    """`ok`, `refused` (unknown or contradictory) or `insufficient` (too little is stated)."""
    reason: str = ""


class VisionValidation(
    Computed, frozen=True, kw_only=True, tag_field="record", tag="vision-validation"
):
    """The document of `--json`. Errors stand by group, then by what was left out of the fit."""

    rows: list[VisionRow]
    """A row of the table comes once for each way in which it was predicted."""
    by_kind: dict[str, dict[str, Errors]]
    by_class: dict[str, dict[str, Errors]]
    """By class of software and kind of time, `tensorrt, gpu latency`."""
    by_source: dict[str, dict[str, Errors]]
    overall: Overall
    """The table as predicted in the first way: the device left out, if anything is."""
    calibration: str
