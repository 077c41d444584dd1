"""The coefficients of training: priors, and the shipped fit; TOML beside this file, read once.

`priors.toml` says what is believed about each coefficient without any published run;
`calibration.toml` holds the fitted values: one table for all devices, and one per architecture
whose entries override it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.training.coefficients import Coefficients
from ridgeline.errors import InputError
from ridgeline.hardware.facts import Device
from ridgeline.plan.fitting import Parameter, PriorFile
from ridgeline.records.input_file import read_toml

CALIBRATION = Path(__file__).with_name("calibration.toml")
PRIORS = Path(__file__).with_name("priors.toml")
TEXTBOOK_SHARES = {
    "fp32": 0.7, "bf16": 0.7, "fp16": 0.7, "fp8": 0.55, "mxfp8": 0.55, "nvfp4": 0.4,
}  # fmt: skip
"""Share of the peak that large matmuls sustain where no architecture's own is known."""
MOST_OF_PEAK = 0.95
"""The largest share of the peak that any power lets matmuls sustain."""
FEW_ROWS = 10
"""Rows of an architecture below which its own share of the peak is mostly believed, not seen."""
FAR = 1.5
"""Times as wide the interval is there: left out, the sources of MI325X and of V100 are off by 1.3
to 1.9 times the errors of the others (docs/results/accuracy_training.md)."""
SHARES_AT_WATTS = {"CDNA 3": 750.0}
"""Architecture → the power of the part whose shares of the peak are meant, where its parts have the
same peak and other power: MI325X has MI300X's compute units and clock, and 1,000 W."""
Calibration = Callable[[Device], Coefficients]
"""Device → its coefficients."""


class Overrides(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `calibration.toml`: coefficients by name, as in `Coefficients`."""

    all: dict[str, Any]
    architecture: dict[str, dict[str, Any]] = {}
    rows: dict[str, dict[str, int]] = {}
    """Architecture → precision → published runs that the fit has seen."""


def coefficients_for(device: Device, path: Path = CALIBRATION) -> Coefficients:
    """The coefficients that hold for a device.

    >>> from ridgeline.hardware import device
    >>> 0.4 < coefficients_for(device("h100")).gemm["bf16"] < 0.9
    True
    """
    book = read_calibration(path)
    special = book.architecture.get(device.architecture, {})
    values = book.all | special | _spreads(book, device)
    shares = book.all.get("gemm", {}) | special.get("gemm", {})
    values["gemm"] = {name: _at_power(device, share) for name, share in shares.items()}
    try:
        return Coefficients(**values)
    except TypeError as error:
        raise InputError(f"{path}: {error}") from None


def _at_power(device: Device, share: float) -> float:
    """A share of the peak at a device's own power, whose root clocks follow, short of the peak."""
    meant = SHARES_AT_WATTS.get(device.architecture)
    if meant is None or device.power is None:
        return share
    return min(share * math.sqrt(device.power.watts / meant), MOST_OF_PEAK)


def _spreads(book: Overrides, device: Device) -> dict[str, float]:
    """Wider spreads for an architecture of which the fit has seen next to nothing.

    A file without counts of rows is a user's own, and means what it says.
    """
    seen = sum(book.rows.get(device.architecture, {}).values())
    if not book.rows or seen >= FEW_ROWS:
        return {}
    return {name: book.all[name] * FAR for name in ("sigma", "sigma_experts") if name in book.all}


def fitted_rows(path: Path = CALIBRATION) -> dict[str, dict[str, int]]:
    """Architecture → precision → published runs behind the coefficients."""
    return read_calibration(path).rows


@functools.cache
def read_calibration(path: Path = CALIBRATION) -> Overrides:
    """The file as it stands."""
    return read_toml(path, Overrides)


def calibration_with(
    parameters: Sequence[Parameter], logs: Floats, base: Calibration = coefficients_for
) -> Calibration:
    """Device → coefficients, with the parameters at these (logarithmic) values."""

    def of_device(device: Device) -> Coefficients:
        start = base(device)
        gemm = dict(start.gemm)
        changes: dict[str, float] = {}
        for parameter, value in zip(parameters, np.exp(logs).tolist(), strict=True):
            if not device.architecture.startswith(parameter.architecture):
                continue
            if parameter.key == "gemm":
                gemm |= dict.fromkeys(parameter.precisions, _at_power(device, value))
            else:
                changes[parameter.key] = value
        return replace(start, gemm=gemm, **changes)

    return of_device


@functools.cache
def priors() -> tuple[Parameter, ...]:
    """Every fitted coefficient with its prior."""
    return read_toml(PRIORS, PriorFile).parameter


def prior_coefficients(device: Device) -> Coefficients:
    """The uncalibrated coefficients of a device."""
    parameters = priors()
    logs = np.log([one.prior for one in parameters])
    return calibration_with(parameters, logs, _textbook)(device)


def _textbook(_device: Device) -> Coefficients:
    """What the fitted numbers are laid over: one share of the peak for all precisions."""
    return Coefficients(gemm=TEXTBOOK_SHARES)
