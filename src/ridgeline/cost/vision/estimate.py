"""The time of one pass, or of one training step, of a network on one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ridgeline.cost.vision.coefficients import VisionCoefficients
from ridgeline.cost.vision.setting import VisionSetting
from ridgeline.hardware.facts import Device
from ridgeline.models.vision.network import VisionNetwork

StepBound = Literal["compute", "memory", "launches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionStepTime:
    """The predicted time of one batch; not a measurement."""

    seconds: float
    """One forward pass of the batch, or one step: forward, backward, optimizer."""
    interval: tuple[float, float]
    """Seconds between which 80 of 100 such measurements are expected to lie."""
    terms: Mapping[str, float]
    """`compute`, `memory`, `launches` (what the host alone adds) → seconds; they add up."""
    assumed: tuple[str, ...]
    """Sentences on what was assumed, and where the fit has no ground."""

    @property
    def bound(self) -> StepBound:
        """The largest term."""
        names: tuple[StepBound, ...] = ("compute", "memory", "launches")
        return max(names, key=lambda name: self.terms[name])


def estimate(
    network: VisionNetwork,
    device: Device,
    setting: VisionSetting,
    coefficients: VisionCoefficients,
) -> VisionStepTime:
    """The time of one batch of `network` on `device`.

    Raises:
        InputError: The device has no rate for the precision, or the software is unknown.
    """
    raise NotImplementedError
