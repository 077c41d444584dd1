"""Minimise a cost of errors by damped Gauss-Newton (Levenberg-Marquardt), within bounds.

What is fitted are logarithms of coefficients; the caller says what its errors cost and how they
turn with the logarithms (Nocedal and Wright, "Numerical Optimization", 2006, section 10.3).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ridgeline.cost.layouts import Floats

LONGEST = 0.4
"""Step of one round, in log coefficient."""


class Problem(Protocol):
    """What is to be minimised."""

    def errors(self, logs: Floats) -> Floats:
        """Of every row."""

    def cost(self, logs: Floats, errors: Floats) -> float:
        """Less is more plausible."""

    def linearised(self, logs: Floats, errors: Floats) -> tuple[Floats, Floats]:
        """Curvature and half the gradient of the cost, errors taken as linear at `logs`."""


def minimised(
    problem: Problem, start: Floats, *, low: Floats, high: Floats, rounds: int
) -> tuple[Floats, float]:
    """The best logarithms that were found from `start`, and their cost.

    Damping grows until a step gains, and shrinks after it did.
    """
    logs, errors = start, problem.errors(start)
    cost, damping = problem.cost(logs, errors), 1e-2
    for _ in range(rounds):
        curvature, gradient = problem.linearised(logs, errors)
        for _ in range(6):
            damped = curvature + damping * np.diag(np.diag(curvature))
            step = np.clip(-np.linalg.solve(damped, gradient), -LONGEST, LONGEST)
            trial = np.clip(logs + step, low, high)
            trial_errors = problem.errors(trial)
            trial_cost = problem.cost(trial, trial_errors)
            if trial_cost < cost:
                break
            damping *= 4.0
        else:
            break
        gained = cost - trial_cost
        logs, errors, cost = trial, trial_errors, trial_cost
        damping = max(damping / 3.0, 1e-4)
        if gained < 1e-3 * cost:
            break
    return logs, cost
