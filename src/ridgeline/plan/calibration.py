"""The shipped coefficients and software classes: TOML beside this file, read once.

`calibration.toml` holds one table for all devices and one per architecture whose entries override
it; `stacks.toml` the classes of training software.
"""

from __future__ import annotations

import difflib
import functools
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.cost.coefficients import Coefficients
from ridgeline.cost.workload import Stack
from ridgeline.errors import InputError
from ridgeline.hardware.facts import Device
from ridgeline.records.input_file import read_toml

CALIBRATION = Path(__file__).with_name("calibration.toml")
STACKS = Path(__file__).with_name("stacks.toml")


class Overrides(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`calibration.toml`: coefficients by name, as in `Coefficients`."""

    all: dict[str, Any]
    architecture: dict[str, dict[str, Any]] = {}
    rows: dict[str, dict[str, int]] = {}
    """Architecture → precision → published runs that the fit has seen."""


class StackFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stacks.toml`, in the order in which cues are looked for."""

    stack: list[Stack]


def coefficients_for(device: Device, path: Path = CALIBRATION) -> Coefficients:
    """The coefficients that hold for a device.

    >>> from ridgeline.hardware import device
    >>> 0.4 < coefficients_for(device("h100")).gemm["bf16"] < 0.9
    True
    """
    book = read_calibration(path)
    special = book.architecture.get(device.architecture, {})
    values = book.all | special
    values["gemm"] = book.all.get("gemm", {}) | special.get("gemm", {})
    try:
        return Coefficients(**values)
    except TypeError as error:
        raise InputError(f"{path}: {error}") from None


def fitted_rows(path: Path = CALIBRATION) -> dict[str, dict[str, int]]:
    """Architecture → precision → published runs behind the coefficients."""
    return read_calibration(path).rows


@functools.cache
def read_calibration(path: Path = CALIBRATION) -> Overrides:
    """The file as it stands."""
    return read_toml(path, Overrides)


@functools.cache
def stacks() -> tuple[Stack, ...]:
    """The software classes."""
    return tuple(read_toml(STACKS, StackFile).stack)


def stack(name: str) -> Stack:
    """The software class called `name`.

    >>> stack("megatron").fused_attention
    True
    """
    known = {one.name: one for one in stacks()}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise InputError(f"unknown software stack {name!r}; {hint}")
    return known[name]
