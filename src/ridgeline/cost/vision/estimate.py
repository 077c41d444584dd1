"""The time of one pass, or of one training step, of a network on one device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ridgeline.cost.arrays import Bools, Floats
from ridgeline.cost.vision.coefficients import (
    VisionCoefficients,
    known_software,
    place_of,
    traits_of,
)
from ridgeline.cost.vision.setting import VisionSetting
from ridgeline.cost.vision.work import (
    COMPUTE,
    HOST,
    WORK,
    demand,
    is_processor,
    operator_arrays,
)
from ridgeline.hardware.facts import Device
from ridgeline.models.vision.network import VisionNetwork

StepBound = Literal["compute", "memory", "launches"]
CORNER = 4.0
"""How sharply the longer of device and host decides: the exponent of their mean."""
OVERHEADS = WORK[WORK.index("kernels") :]
"""The last of `WORK`: what is neither arithmetic nor traffic."""
UNSEEN_SOFTWARE = 1.5
"""Times as wide, in the logarithm, is the interval of software that no measured run had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionStepTime:
    """The predicted time of one batch; not a measurement."""

    seconds: float
    """One forward pass of the batch, or one step: forward, backward, optimizer."""
    interval: tuple[float, float]
    """Seconds between which 80 of 100 such measurements are expected to lie."""
    terms: Mapping[str, float]
    """`compute`, `memory`, `launches` (starting kernels, and waiting for the host to) → seconds;
    they add up."""
    assumed: tuple[str, ...]
    """Sentences on what was assumed, and where the fit has no ground."""

    @property
    def bound(self) -> StepBound:
        """The name of the largest term."""
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
    seen = known_software(coefficients, device, setting.software)
    at_peak = demand(operator_arrays(network), device, setting)
    spent = at_peak * coefficients.factors(traits_of(device, setting))
    seconds = float(total_seconds(spent[None, :], is_processor(device))[0])
    first = len(COMPUTE)
    compute, memory = float(spent[:first].sum()), float(spent[first : -len(OVERHEADS)].sum())
    known = device.architecture in coefficients.architectures
    log = coefficients.width(device, setting, seen=known and seen)
    assumed = []
    if not known:
        assumed.append(f"no measured run of {device.architecture} is in the fit: its peaks alone")
    if not seen:
        log *= UNSEEN_SOFTWARE
        place = place_of(device)
        assumed.append(f"{setting.software} on a {place} is not in the fit: taken as eager")
    factor = math.exp(log)
    return VisionStepTime(
        seconds=seconds,
        interval=(seconds / factor, seconds * factor),
        terms={"compute": compute, "memory": memory, "launches": seconds - compute - memory},
        assumed=tuple(assumed),
    )


def total_seconds(spent: Floats, processor: bool | Bools) -> Floats:
    """The time of runs from their seconds by kind of work (rows: runs, columns: `WORK`).

    A host launches while a GPU computes: whichever takes longer decides, with a soft corner. A
    processor is its own host: both add up.
    """
    busy, host = spent[:, :-HOST].sum(axis=1), spent[:, -HOST:].sum(axis=1)
    overlapped = (busy**CORNER + host**CORNER) ** (1.0 / CORNER)
    return np.asarray(np.where(processor, busy + host, overlapped))
