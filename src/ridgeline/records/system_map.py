"""A perception system from its data to the vehicle: what each part costs and what limits it.

The field names are the JSON contract of `ridgeline predict system`.
"""

from __future__ import annotations

from typing import Literal

from ridgeline.records.finite import Computed

PartName = Literal["data", "training", "compression", "serving", "vehicle"]


class PartGain(Computed, frozen=True, kw_only=True):
    """What a technique gained where it was measured."""

    technique: str
    median_ratio: float
    """The median multiplier over the public scripts on which it was kept."""
    least_ratio: float
    most_ratio: float
    scripts: int


class PredictedChange(Computed, frozen=True, kw_only=True):
    """What another setting would make of a part; predicted, not measured."""

    change: str
    ratio: float


class SystemPart(Computed, frozen=True, kw_only=True):
    """One part of the system."""

    part: PartName
    headline: str
    """Its main figure, in words."""
    figures: dict[str, float]
    """Name with its unit → value."""
    limit: str
    """What bounds it now, in a sentence."""
    cost_usd: float | None
    """None where no price is on record, or it costs nothing by the hour."""
    command: str
    """The command that says more of it."""
    measured: list[PartGain]
    predicted: list[PredictedChange]


class SystemMap(Computed, frozen=True, kw_only=True, tag_field="record", tag="system-map"):
    """All parts of one perception system."""

    model: str
    cluster: str
    vehicle: str
    parts: list[SystemPart]
    """From the data to the vehicle."""
    shown: PartName
    """The part that was asked about."""
    tightest: PartName
    """The part that holds the system back most."""
    why_tightest: str
    assumed: list[str]
