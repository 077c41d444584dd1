"""The time of one device, as `cost/vision/` estimates it: the only door to that estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ridgeline.cost.vision.coefficients import kind_of_time, known_software, place_of
from ridgeline.cost.vision.estimate import estimate
from ridgeline.cost.vision.setting import MemoryFormat, VisionJob, VisionSetting
from ridgeline.errors import InputError
from ridgeline.hardware.facts import Device
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.plan.vision.coefficients import shipped_coefficients
from ridgeline.plan.vision.measured import AS_SHIPPED, SystemPace
from ridgeline.records.vision_estimate import VisionBound

PLACES = {"cpu": "processor", "gpu": "GPU"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The time of one pass, or of one training step, on one device."""

    seconds: float
    interval: tuple[float, float]
    """Seconds between which 80 of 100 such measurements are expected to lie."""
    terms: dict[str, float]
    """`compute`, `memory` and `launches` → seconds; they add up to `seconds`."""
    bound: VisionBound
    assumed: tuple[str, ...]


def time_of(
    network: VisionNetwork,
    device: Device,
    *,
    task: VisionJob,
    batch: int,
    precision: str,
    memory_format: MemoryFormat,
    software: str,
    threads: int | None = None,
    pace: SystemPace = AS_SHIPPED,
) -> Timing:
    """What the fit says of one setting on one device.

    Args:
        network: What runs, counted for its image size.
        device: What it runs on.
        task: One forward pass, or a training step with backward pass and optimizer.
        batch: Images of one pass.
        precision: `fp32`, `tf32`, `bf16`, `fp16` or `int8`; in training 16 bits are autocast.
        memory_format: How activations lie in memory.
        software: A class that the fit knows: `eager`, `compile`, `tensorrt`, ….
        threads: Of a processor; None: all its cores.
        pace: What the user's own measurements say of the system.

    Raises:
        InputError: The fit has no ground for it.
    """
    mixed = task == "train" and precision in ("bf16", "fp16")
    setting = VisionSetting(
        task=task,
        batch=batch,
        precision=f"amp_{precision}" if mixed else precision,
        memory_format=memory_format,
        software=software,
        threads=threads,
    )
    coefficients = shipped_coefficients()
    if not known_software(coefficients, device, software):
        raise InputError(
            f"--software {software}: no measured run of it on a {PLACES[place_of(device)]} is in"
            f" the fit; use one of {', '.join(fitted_software(device))}"
        )
    found = estimate(network, device, setting, coefficients)
    if not math.isfinite(found.seconds) or found.seconds <= 0:
        raise InputError(
            f"the fit has no time for {network.name} in {precision} under {software} on"
            f" {device.name}: no published run is like it"
        )
    seconds, factor = pace.factor * found.seconds, found.interval[1] / found.seconds
    if pace.widths is not None:
        factor = min(factor, math.exp(pace.widths[kind_of_time(device, setting)]))
    return Timing(
        seconds=seconds,
        interval=(seconds / factor, seconds * factor),
        terms={name: pace.factor * term for name, term in found.terms.items()},
        bound=found.bound,
        assumed=found.assumed,
    )


def fitted_software(device: Device) -> tuple[str, ...]:
    """The classes of software that the fit has seen on such a device."""
    place = place_of(device)
    known = (one.partition(" ") for one in shipped_coefficients().software)
    return tuple(name for where, _, name in known if where == place)
