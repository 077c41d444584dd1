"""Whether a figure of the user's own can be what it says: a unit that is mistaken is not fitted to.

Published runs of systems that no fit has seen are off by up to sixfold, of networks for images by
ten; milliseconds for seconds are off by a thousand.
"""

from __future__ import annotations

from ridgeline.errors import InputError

MOST_OFF = 100.0
"""Times that a measurement may lie above or below what is predicted."""


def check_near(name: str, measured: float, predicted: float, unit: str = "seconds") -> None:
    """Refuse a measurement that is far from anything that could be predicted.

    >>> check_near("step_seconds", 1.3, 1.0)
    >>> check_near("step_seconds", 1300.0, 1.0)
    Traceback (most recent call last):
    ridgeline.errors.InputError: --measured: step_seconds is 1300, and 1 is predicted; give seconds

    Raises:
        InputError: It is.
    """
    if not 1.0 / MOST_OFF < measured / predicted < MOST_OFF:
        raise InputError(
            f"--measured: {name} is {measured:g}, and {predicted:.3g} is predicted; give {unit}"
        )
