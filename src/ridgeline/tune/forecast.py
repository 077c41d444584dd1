"""What a row of the ledger is foretold to gain: the techniques' own models, and their record.

A technique's `predict` knows the step's operators and the machine's limits, and nothing of what it
overlooks. How far such ranges were off where they were measured stands in `forecast_margins.toml`,
which `python -m bench.public_tuned FOLDER --page` writes; what is shown is the range of the model,
widened by that.

The margins are conformal: as wide as it takes for the range to have held four gains in five,
whatever the errors' distribution, were the next script drawn like the last ones (Romano, Patterson
and Candès, "Conformalized Quantile Regression", NeurIPS 2019; each end by itself, in logarithms).
A technique with few rows borrows from the rest: a row of another one weighs `_BORROWED` of its own
(Tibshirani et al., "Conformal Prediction Under Covariate Shift", NeurIPS 2019). So its margins
are near those of all where little is known of it, and its own where much is.
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
"""Stands for every technique that no row is of."""
COVERAGE = 0.8
"""Share of the gains that ranges are to hold."""
_BORROWED = 0.2
"""What a row of another technique weighs beside one of its own. Of 0, 0.02, 0.05, 0.1, 0.2, 0.5
and 1 the best over the public scripts, each held against margins from the others: by width and
misses together (the interval score of Gneiting and Raftery, 2007)."""


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


def leaning(name: str) -> float:
    """By how much a technique's gains lay above the middle of its model's ranges, in logarithms.

    Margins of one width would say that the model is as often too high as too low. Where gains fell
    far below it and seldom above, the lower one is wider, and the middle of what is shown is lower.
    """
    margins = _margins()
    margin = margins.get(name, margins[OTHERS])
    return math.log(margin.above / margin.below) / 2


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
        One for each key, and last `others`, of all rows alike.
    """
    errors: dict[str, list[tuple[float, float]]] = {}
    for key, model, gain in rows:
        errors.setdefault(key, []).append((math.log(model.low / gain), math.log(gain / model.high)))
    every = [(key, error) for key, found in errors.items() for error in found]
    weighed = {
        key: [(error, 1.0 if key in (other, OTHERS) else _BORROWED) for other, error in every]
        for key in (*sorted(errors), OTHERS)
    }
    return [_margin(key, errors.get(key, every), weights) for key, weights in weighed.items()]


def _margin(
    technique: str, own: Sequence[object], weighed: list[tuple[tuple[float, float], float]]
) -> Margin:
    below, above = (_outer([(pair[end], weight) for pair, weight in weighed]) for end in (0, 1))
    return Margin(
        technique=technique,
        rows=len(own),
        below=round(math.exp(below), 3),
        above=round(math.exp(above), 3),
    )


def _outer(weighed: list[tuple[float, float]]) -> float:
    """What the next error stays below, but for half of what may lie outside; 0 at least.

    The next error weighs 1, and may be larger than any.
    """
    reached, wanted = 0.0, (sum(weight for _, weight in weighed) + 1) * (1 + COVERAGE) / 2
    largest = 0.0
    for error, weight in sorted(weighed):
        reached, largest = reached + weight, error
        if reached >= wanted - 1e-9:
            break
    return max(0.0, largest)
