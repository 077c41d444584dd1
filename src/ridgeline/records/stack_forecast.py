"""A proved stack with some of its rows left out: what the run would take and cost.

The field names are the JSON contract of `ridgeline predict stack`.
"""

from __future__ import annotations

from ridgeline.records.finite import Computed


class StackPoint(Computed, frozen=True, kw_only=True):
    """A run with the rows up to here."""

    cumulative: float
    """How many times faster than the script as it stood."""
    interval: tuple[float, float]
    """Bounds of `cumulative`, at 95 %."""
    step_seconds: float
    peak_memory_bytes: float
    run_seconds: float | None
    """The whole run; null where its length is not known."""
    usd: float | None
    """What that run costs; null where the price is not known either."""


class ForecastRow(Computed, frozen=True, kw_only=True):
    """One proved row of a ledger, kept or left out."""

    technique: str
    applied: bool
    multiplier: float
    """Its speed-up on top of the rows above it, as measured."""
    interval: tuple[float, float]
    point: StackPoint
    """The run with this row, if it is applied, and all applied ones above."""


class StackForecast(Computed, frozen=True, kw_only=True, tag_field="record", tag="stack-forecast"):
    """A ledger's stack with rows switched on and off."""

    script: list[str]
    """The command that was tuned."""
    machine: str
    start: StackPoint
    rows: list[ForecastRow]
    final: StackPoint
    measured: bool
    """Whether every row is applied: `final` was measured side by side then, and is a product of
    rows otherwise."""
    largest: str
    """The applied row with the largest multiplier; empty where none is applied."""
    steps: float | None
    """Steps of the whole run; null where neither the ledger nor the question says."""
    usd_per_hour: float | None
    not_kept: list[str]
    """Techniques that were tried and did not survive."""
