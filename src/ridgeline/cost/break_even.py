"""When a slower start has paid for itself in faster steps.

    steps = extra start-up / (step before - step after)

A compiled script starts later by its compilation; whether that is worth it depends on the steps
that are left, which no multiplier says.
"""

from __future__ import annotations

from collections.abc import Sequence


def startup_seconds(
    first_seconds: Sequence[float], settled_seconds: float, start_seconds: float = 0.0
) -> float:
    """What came before the steady pace: the start, and the first steps beyond settled ones.

    >>> round(startup_seconds([12.0, 0.5, 0.2, 0.2], 0.2, start_seconds=3.0), 1)
    15.1
    """
    beyond = sum(first_seconds) - len(first_seconds) * settled_seconds
    return start_seconds + max(0.0, beyond)


def steps_to_pay(
    extra_startup_seconds: float, before_seconds: float, after_seconds: float
) -> float | None:
    """Steps after which the faster step has earned the slower start; None: never.

    >>> steps_to_pay(30.0, 0.5, 0.2), steps_to_pay(-1.0, 0.5, 0.2), steps_to_pay(30.0, 0.5, 0.5)
    (100.0, 0.0, None)
    """
    saved = before_seconds - after_seconds
    if extra_startup_seconds <= 0.0:
        return 0.0
    return extra_startup_seconds / saved if saved > 0.0 else None
