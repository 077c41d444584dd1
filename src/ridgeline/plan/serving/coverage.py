"""How sure a prediction is: the spread of errors on sources outside the fit, and its range.

Errors are taken as normal in the logarithm with one spread per kind of metric; each source's own
version, flags and client are in it, since each was predicted by coefficients that never saw it.
What lies outside the range of the fitted runs is refused: nothing there says how wrong it may be.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ridgeline.cost.training.estimate import COVERAGE_80
from ridgeline.errors import InputError
from ridgeline.plan.serving.coefficients import Calibration, Spread
from ridgeline.plan.serving.prepared import family
from ridgeline.plan.serving.published import PublishedServing

BEYOND = 2.0
"""How far beyond the fitted range, as a factor, a question is still answered."""


def sigma_of(run: PublishedServing, spread: Spread) -> float:
    """The spread of one run's metric."""
    value = float(getattr(spread, family(run)))
    return value * (spread.experts if run.model.experts else 1.0)


def factor_of(sigma: float) -> float:
    """An 80 % interval reaches from the prediction over this to the prediction times this."""
    return float(np.exp(COVERAGE_80 * sigma))


def check_range(calibration: Calibration, asked: Mapping[str, float]) -> None:
    """Refuse what no fitted run is near to.

    Raises:
        InputError: With what was asked and what is known.
    """
    for name, value in asked.items():
        if name not in calibration.ranges:
            continue
        low, high = calibration.ranges[name]
        if not low / BEYOND <= value <= high * BEYOND:
            raise InputError(
                f"{name} {value:.4g} is outside what the model was fitted to"
                f" ({low:.4g} to {high:.4g}, a factor of {BEYOND:g} allowed): no honest interval;"
                " measure one run and fit to it, or ask within the range"
            )
