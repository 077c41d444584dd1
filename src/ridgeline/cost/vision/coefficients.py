"""How far from a device's peaks each kind of work runs, under each class of software."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionCoefficients:
    """Everything that was fitted; read by `ridgeline.plan.vision.coefficients`."""

    values: Mapping[str, float]
    """Name of a coefficient → its value."""
