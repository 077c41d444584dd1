"""What a row of the ledger is foretold to gain: the techniques' own models, and their record.

A technique's `predict` knows the step's operators and the machine's limits, and nothing of what it
overlooks. How far such ranges were off where they were measured stands in `forecast_margins.toml`,
which `python -m bench.public_tuned FOLDER --page` writes; what is shown is the range of the model,
widened by that.

The margins are conformal: as wide as it takes for the range to have held four gains in five,
whatever the errors' distribution, were the next script drawn like the last ones (Romano, Patterson
and Candès, "Conformalized Quantile Regression", NeurIPS 2019; each end by itself, in logarithms).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import msgspec

from ridgeline.records.input_file import read_toml
from ridgeline.techniques import Gain

MARGINS = Path(__file__).with_name("forecast_margins.toml")
TOGETHER = "together"
"""Stands for whatever was added as one."""
OTHERS = "others"
"""Stands for every technique with too few rows to be judged by its own."""
COVERAGE = 0.8
"""Share of the gains that ranges are to hold."""
_ENOUGH = 9
"""Rows from which one of nine in ten is not the largest of all."""


class Margin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By how much the ranges of one technique are widened."""

    technique: str
    """Its name, `together` or `others`."""
    rows: int
    """How many measured rows it comes from."""
    below: float
    """The lower end is divided by this, 1 or more."""
    above: float
    """The upper end is multiplied by this, 1 or more."""


class MarginFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `forecast_margins.toml`."""

    measured_on: str
    margin: list[Margin]


def foretold(names: Sequence[str], model: Gain) -> tuple[float, float]:
    """The range that is shown for techniques that were added as one, from their models' own."""
    margins = _margins()
    margin = margins.get(key_of_margin(names), margins[OTHERS])
    return model.low / margin.below, model.high * margin.above


def key_of_margin(names: Sequence[str]) -> str:
    """What a row's errors are counted under."""
    return names[0] if len(names) == 1 else TOGETHER


@cache
def _margins() -> dict[str, Margin]:
    return {margin.technique: margin for margin in read_toml(MARGINS, MarginFile).margin}


def fitted(rows: Iterable[tuple[str, Gain, float]]) -> list[Margin]:
    """Margins from measured rows.

    Args:
        rows: What a row counts under (`key_of_margin`), the models' range, the measured gain.

    Returns:
        One for each key with enough rows, and `others` of all the rest, which comes last.
    """
    errors: dict[str, list[tuple[float, float]]] = {}
    for key, model, gain in rows:
        errors.setdefault(key, []).append((math.log(model.low / gain), math.log(gain / model.high)))
    enough = {key: found for key, found in errors.items() if len(found) >= _ENOUGH}
    rest = [error for key, found in errors.items() if key not in enough for error in found]
    return [_margin(key, found) for key, found in sorted(enough.items())] + [_margin(OTHERS, rest)]


def _margin(technique: str, errors: list[tuple[float, float]]) -> Margin:
    below, above = ([pair[end] for pair in errors] for end in (0, 1))
    return Margin(
        technique=technique,
        rows=len(errors),
        below=round(math.exp(_outer(below)), 3),
        above=round(math.exp(_outer(above)), 3),
    )


def _outer(errors: list[float]) -> float:
    """What the next error stays below, but for half of what may lie outside; 0 at least."""
    if not errors:
        return 0.0
    place = math.ceil((len(errors) + 1) * (1 + COVERAGE) / 2)
    return max(0.0, sorted(errors)[min(place, len(errors)) - 1])
