"""The coefficients of vision models that the package ships, and what is believed without a fit.

`priors.toml` says what is believed of each kind of work and trait, and how firmly;
`coefficients.toml` holds what `bench/refit_vision.py` fitted, `left_out.csv` the same of fits
without one device or one family each.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path

import msgspec
import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.vision.coefficients import VisionCoefficients
from ridgeline.cost.vision.work import WORK
from ridgeline.errors import InputError
from ridgeline.records.input_file import read_text, read_toml

FOLDER = Path(__file__).parent
COEFFICIENTS = FOLDER / "coefficients.toml"
LEFT_OUT = FOLDER / "left_out.csv"


class TraitPrior(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is believed of one trait."""

    name: str
    spread: float
    """Standard deviation of each factor's logarithm."""
    why: str
    factors: dict[str, float]
    """Kind of work → factor; `all` for those that are not named."""
    spreads: dict[str, float] = {}
    """Kind of work → its own standard deviation."""

    @property
    def logs(self) -> Floats:
        """Logarithms of the factors, in the order of `WORK`."""
        strange = sorted({*self.factors, *self.spreads} - {"all", *WORK})
        if strange:
            raise InputError(f"priors.toml: {self.name}: no kind of work {strange[0]!r}")
        rest = self.factors.get("all", 1.0)
        return np.log([self.factors.get(name, rest) for name in WORK])

    @property
    def deviations(self) -> Floats:
        """Standard deviations of those logarithms, in the order of `WORK`."""
        return np.array([self.spreads.get(name, self.spread) for name in WORK])


class TraitPriors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `priors.toml`."""

    trait: tuple[TraitPrior, ...]


class FittedVision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `coefficients.toml`."""

    table: str
    """What it was fitted to."""
    rows: int
    software: tuple[str, ...]
    architectures: tuple[str, ...]
    spread: dict[str, float]
    factors: dict[str, dict[str, float]]
    """Trait → kind of work → factor."""


@functools.cache
def trait_priors() -> tuple[TraitPrior, ...]:
    """Every trait, kinds of devices first."""
    return read_toml(FOLDER / "priors.toml", TraitPriors).trait


@functools.cache
def shipped_coefficients() -> VisionCoefficients:
    """What was fitted to published runs."""
    found = read_toml(COEFFICIENTS, FittedVision)
    return VisionCoefficients(
        logs={
            trait: np.log([factors[name] for name in WORK])
            for trait, factors in found.factors.items()
        },
        software=found.software,
        architectures=found.architectures,
        spread=found.spread,
    )


def prior_coefficients() -> VisionCoefficients:
    """What is believed without any published run."""
    return with_logs(shipped_coefficients(), np.array([one.logs for one in trait_priors()]))


def with_logs(base: VisionCoefficients, logs: Floats) -> VisionCoefficients:
    """The same coefficients with other logarithms: a row a trait, in the order of the priors."""
    names = [one.name for one in trait_priors()]
    return VisionCoefficients(
        logs=dict(zip(names, logs, strict=True)),
        software=base.software,
        architectures=base.architectures,
        spread=base.spread,
    )


@functools.cache
def left_out_coefficients() -> dict[tuple[str, str], VisionCoefficients]:
    """(`device` or `family`, its name) → coefficients of a fit that has not seen it."""
    found = {}
    for kind, name, *values in csv.reader(read_text(LEFT_OUT).splitlines()):
        logs = np.array([float(value) for value in values]).reshape(-1, len(WORK))
        found[kind, name] = with_logs(shipped_coefficients(), logs)
    return found
