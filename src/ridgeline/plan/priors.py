"""What is believed about the fitted coefficients without any published run (`priors.toml`)."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec
import numpy as np

from ridgeline.cost.coefficients import Coefficients
from ridgeline.hardware.facts import Device
from ridgeline.plan.refit import Parameter, calibration_with
from ridgeline.records.input_file import read_toml

PRIORS = Path(__file__).with_name("priors.toml")


class PriorFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`priors.toml`."""

    parameter: list[Parameter]


@functools.cache
def priors() -> tuple[Parameter, ...]:
    """Every fitted coefficient with its prior."""
    return tuple(read_toml(PRIORS, PriorFile).parameter)


def prior_coefficients(device: Device) -> Coefficients:
    """The uncalibrated coefficients of a device."""
    parameters = priors()
    logs = np.log([one.prior for one in parameters])
    return calibration_with(parameters, logs, _textbook)(device)


def _textbook(_device: Device) -> Coefficients:
    """What the fitted numbers are laid over: one share of the peak for all precisions."""
    shares = {"fp32": 0.7, "bf16": 0.7, "fp16": 0.7, "fp8": 0.55, "mxfp8": 0.55, "nvfp4": 0.4}
    return Coefficients(gemm=shares)
