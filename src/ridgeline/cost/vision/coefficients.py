"""How far from a device's peaks each kind of work runs: base coefficients and those of traits.

    seconds of a kind of work = seconds at the peaks · base · product over the traits of the run

A trait is a class of software, a layout, a task, a precision or a kind of device: it multiplies
kinds of work, as a compiler that fuses divides the traffic of activations. No trait is a model or a
device by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.vision.setting import VisionSetting
from ridgeline.cost.vision.work import is_processor
from ridgeline.errors import InputError
from ridgeline.hardware.facts import Device

PLAIN = "eager"
"""The software that has no trait of its own: operator by operator."""
SMALL_BATCH = 16
"""Images of a batch below which a time is a latency: launches and half-empty waves count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionCoefficients:
    """Everything that was fitted; shipped by `ridgeline.plan.vision.coefficients`."""

    logs: Mapping[str, Floats]
    """`base` or a trait → logarithms of its factors, in the order of `work.WORK`."""
    software: tuple[str, ...]
    """The classes of software that have been fitted, by kind of device: `gpu compile`."""
    architectures: tuple[str, ...]
    """Those of the devices in the fit."""
    spread: Mapping[str, float]
    """Kind of time (`kind_of_time`), with ` seen` or ` unseen` for the architecture →
    log of what an 80 % interval multiplies and divides by."""

    def factors(self, traits: tuple[str, ...]) -> Floats:
        """What the seconds at the peaks are multiplied by, for a run with these traits."""
        logs = sum((self.logs[one] for one in traits if one in self.logs), self.logs["base"])
        return np.asarray(np.exp(logs))


def traits_of(device: Device, setting: VisionSetting) -> tuple[str, ...]:
    """What about a run changes its coefficients.

    >>> from ridgeline.hardware import device
    >>> run = VisionSetting(task="train", batch=64, precision="amp_fp16", software="compile")
    >>> traits_of(device("a100"), run)
    ('gpu compile', 'train')
    """
    place = place_of(device)
    found = [] if place == "gpu" else [place]
    if setting.software != PLAIN:
        found.append(f"{place} {setting.software}")
    if setting.memory_format == "channels_last":
        found.append("channels_last")
    if setting.task == "train":
        found.append("train")
    if setting.dtype in ("fp32", "tf32"):
        found.append("32 bits")
    if setting.dtype == "int8":
        found.append("8 bits")
    return tuple(found)


def place_of(device: Device) -> str:
    """The kind of device: `cpu` or `gpu`."""
    return "cpu" if is_processor(device) else "gpu"


def kind_of_time(device: Device, setting: VisionSetting) -> str:
    """The kind of time that an interval is about."""
    if setting.task == "train":
        return "training"
    size = "latency" if setting.batch < SMALL_BATCH else "throughput"
    return f"{place_of(device)} {size}"


def known_software(coefficients: VisionCoefficients, device: Device, software: str) -> bool:
    """Whether the fit has seen this class of software on such a device.

    Raises:
        InputError: No fit has seen it on any device.
    """
    known = {one.partition(" ")[2] for one in coefficients.software}
    if software not in known:
        raise InputError(f"software {software!r}: not known; use one of {', '.join(sorted(known))}")
    return f"{place_of(device)} {software}" in coefficients.software
