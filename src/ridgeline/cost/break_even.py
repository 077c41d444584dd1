"""When a slower start has paid for itself in faster steps.

    steps = extra start-up / (step before - step after)

A compiled script starts later by its compilation; whether that is worth it depends on the steps
that are left, which no multiplier says.
"""

from __future__ import annotations


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
