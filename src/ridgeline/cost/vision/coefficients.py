"""How far from a device's peaks each kind of work runs: coefficients of the traits of a run.

    seconds of a kind of work = seconds at the peaks · product over the traits of the run

A trait is a kind of device (`gpu`, `cpu`: the first, and what the others multiply), a class of
software, a layout, a task or a precision, as a compiler that fuses divides the traffic of
activations. No trait is a model or a device by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.vision.setting import VisionSetting
from ridgeline.cost.vision.work import is_processor, on_matrix_units
from ridgeline.errors import InputError
from ridgeline.hardware.facts import Device

PLAIN = "eager"
"""The software that has no trait of its own: operator by operator."""
FRAMEWORKS = ("eager", "compile", "graph", "torchscript")
"""Software that starts a library's kernels one by one for tensors in the user's own layout."""
SMALL_BATCH = 16
"""Images of a batch below which a time is a latency: launches and half-empty waves count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionCoefficients:
    """Everything that was fitted; shipped by `ridgeline.plan.vision.coefficients`."""

    logs: Mapping[str, Floats]
    """A trait → logarithms of its factors, in the order of `work.WORK`."""
    software: tuple[str, ...]
    """The classes of software that have been fitted, by kind of device: `gpu compile`."""
    architectures: tuple[str, ...]
    """The architectures of the devices in the fit."""
    spread: Mapping[str, float]
    """Kind of time (`kind_of_time`), where many runs are of one class of software also with that,
    then ` seen` or ` unseen` for the architecture → log of what an 80 % interval multiplies and
    divides by."""

    def factors(self, traits: tuple[str, ...]) -> Floats:
        """What the seconds at the peaks are multiplied by, for a run with these traits."""
        logs = [self.logs[one] for one in traits if one in self.logs]
        return np.asarray(np.exp(np.sum(logs, axis=0)))

    def width(self, device: Device, setting: VisionSetting, *, seen: bool) -> float:
        """Log of what an interval multiplies and divides by, for such a run."""
        kind, end = kind_of_time(device, setting), "seen" if seen else "unseen"
        own = self.spread.get(f"{kind} {setting.software} {end}")
        return self.spread[f"{kind} {end}"] if own is None else own


def traits_of(device: Device, setting: VisionSetting) -> tuple[str, ...]:
    """What about a run changes its coefficients.

    >>> from ridgeline.hardware import device
    >>> run = VisionSetting(task="train", batch=64, precision="amp_fp16", software="compile")
    >>> traits_of(device("a100"), run)
    ('gpu', 'framework', 'gpu compile', 'train')
    """
    place = place_of(device)
    found = [place]
    if place == "gpu" and setting.software in FRAMEWORKS:
        found.append("framework")
    if setting.software != PLAIN:
        found.append(f"{place} {setting.software}")
    if setting.memory_format == "channels_last":
        found.append("channels_last")
    if setting.task == "train":
        found.append("train")
        if place == "gpu" and setting.memory_format == "channels_last":
            found.append("channels_last gradients")
    if not setting.fused_attention and place == "gpu":
        found.append("unfused attention")
    if setting.dtype in ("fp32", "tf32") and place == "gpu":
        found.append("32 bits")
        if not on_matrix_units(device, setting.dtype):
            found.append("vector units")
    if setting.dtype == "int8":
        found.append(f"{place} 8 bits")
        if place == "cpu" and "int8" in device.peaks:
            found.append("cpu dot products")
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
