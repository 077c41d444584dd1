"""The coefficients of serving: priors, what runs they hold for, and the shipped fit.

A coefficient belongs to hardware (architecture, dtype, kind of link), to a class of engines
or to a kind of load, never to a model, a table or a row. `priors.toml` lists them;
`calibration.toml` holds their fitted values, and `left_out.toml` those of fits without one source
each.

How wide intervals are: `spreads.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from ridgeline.cost.arrays import Floats, Ints
from ridgeline.cost.serving.coefficients import Rates
from ridgeline.errors import InputError
from ridgeline.plan.fitting import Parameter, PriorFile
from ridgeline.plan.serving.spreads import Neighbourhood, Spread
from ridgeline.records.input_file import read_toml

FOLDER = Path(__file__).parent
PRIORS = FOLDER / "priors.toml"
CALIBRATION = FOLDER / "calibration.toml"
LEFT_OUT = FOLDER / "left_out.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What decides which coefficients hold."""

    architecture: str
    device: str
    precision: str
    """The dtype of the linear layers' matmuls."""
    widened: float
    """Bits that weights are widened from; 0 where they are not."""
    fabric: bool
    """Whether a fabric of their own joins the devices."""
    engine: str
    like: str = ""
    """The classes of engines whose coefficients hold where this one has none, the nearest first."""
    served: bool
    """Whether requests come over the network one by one, not as a batch in the same process."""


def holds(one: Parameter, case: Situation) -> bool:
    """Whether a coefficient is about such a case."""
    return (
        case.architecture.startswith(one.architecture)
        and case.device.startswith(one.device)
        and (not one.precisions or case.precision in one.precisions)
        and (not one.bits or (case.widened > 0.0 and one.bits == (8 if case.widened > 6.3 else 4)))
        and (one.fabric is None or one.fabric is case.fabric)
        and one.engine in ("", case.engine, *case.like.split())
        and one.load in ("", "served" if case.served else "batch")
    )


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `calibration.toml`."""

    values: dict[str, float]
    """By the parameter's name."""
    sigma: Spread = Spread()
    table: str = ""
    """What it was fitted to."""
    rows: dict[str, dict[str, int]] = {}
    """Architecture → weights' precision → published runs that the fit has seen."""
    seen: list[str] = []
    """The keys of the places (`spreads.Neighbourhood`) that the fit has seen."""
    campaigns: list[str] = []
    """Source, model and device of the fitted runs, as `campaign_of` joins them."""
    ranges: dict[str, list[float]] = {}
    """Least and most of what the fitted runs had: tp, running, prompt, completion, parameters."""

    def sigma_of(self, kind: str, place: Neighbourhood, requests: float = 1.0) -> float:
        """The spread of one kind of metric of one case, so many requests running at once."""
        return self.sigma.of(kind, place, self.seen, requests)

    def logs(self) -> Floats:
        """Logarithms in the order of the priors; a name that is not there keeps its prior."""
        return np.log([self.values.get(one.name, one.prior) for one in priors()])


@functools.cache
def priors() -> tuple[Parameter, ...]:
    """Every coefficient with its prior."""
    return read_toml(PRIORS, PriorFile).parameter


def prior_calibration() -> Calibration:
    """What is believed without any published run."""
    return Calibration(values={one.name: one.prior for one in priors()})


def read_calibration(path: Path = CALIBRATION) -> Calibration:
    """A calibration file; every name in it must be a coefficient."""
    found = read_toml(path, Calibration)
    strange = sorted(set(found.values) - {one.name for one in priors()})
    if strange:
        raise InputError(f"{path}: no coefficient {strange[0]!r}; see {PRIORS.name} for the names")
    return found


def places(cases: Sequence[Situation]) -> dict[str, Ints]:
    """Field of `Rates` → the parameter that holds for each case, -1 for none."""
    found = {}
    for key in Rates.__dataclass_fields__:
        mine = [(index, one) for index, one in enumerate(priors()) if one.key == key]
        chosen = [next((i for i, one in mine if holds(one, case)), -1) for case in cases]
        found[key] = np.array(chosen, dtype=np.int64)
    return found


def rates_at(where: dict[str, Ints], logs: Floats) -> Rates:
    """The coefficients of each case, parameters being at these logarithms."""
    values = np.append(np.exp(logs), 1.0)  # the last for what no parameter holds for: a share of 1
    return Rates(**{key: values[index] for key, index in where.items()})


class LeftOutFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `left_out.toml`."""

    source: dict[str, Calibration]


@functools.cache
def read_left_out(path: Path = LEFT_OUT) -> dict[str, Calibration]:
    """Source → the calibration that was fitted without it, its spreads too."""
    return read_toml(path, LeftOutFile).source
