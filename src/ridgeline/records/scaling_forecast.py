"""How long a whole training run takes on more and more devices.

The field names are the JSON contract of `ridgeline predict scaling`.
"""

from __future__ import annotations

from typing import Literal

from ridgeline.records.estimate import Fit
from ridgeline.records.finite import Computed


class ForecastPoint(Computed, frozen=True, kw_only=True):
    """The run on one number of devices."""

    num_devices: int
    global_batch: int
    step_seconds: float
    run_seconds: float
    ideal_seconds: float
    """The run if the devices of the first point lost nothing by being more."""
    efficiency: float
    """Ideal over predicted time."""
    exposed_seconds: float
    """Communication of a step that nothing hides."""
    verdict: Fit
    usd: float | None
    """None where no price of the device is on record."""
    bottleneck: str
    """The term that takes most of what a step loses against the first point's; `none` there."""


class PublishedRun(Computed, frozen=True, kw_only=True):
    """A whole run that somebody published, for the same model."""

    model: str
    device: str
    num_devices: int
    run_seconds: float
    """Time as published, or for as many tokens as the forecast has, in proportion."""
    note: str
    source: str


class ScalingForecast(
    Computed, frozen=True, kw_only=True, tag_field="record", tag="scaling-forecast"
):
    """Training time against the number of devices."""

    model: str
    device: str
    unit: Literal["tokens", "images"]
    amount: float
    """Tokens, or images of all epochs, of the whole run."""
    overlap: float
    """Share of the backward pass under which gradients may travel."""
    network_bytes_per_second: float
    """The bandwidth of one device, per direction."""
    points: list[ForecastPoint]
    published: list[PublishedRun]
    assumed: list[str]
