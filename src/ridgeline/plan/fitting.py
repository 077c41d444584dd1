"""Fit coefficients to what was measured: robust least squares with priors, in one place.

What is fitted are logarithms. Errors are log(predicted / measured); large ones count in proportion
to their size, not its square (pseudo-Huber loss), and every coefficient has a prior with a spread,
so that rows can be left out without leaving one undetermined. Minimised within bounds by damped
Gauss-Newton (Levenberg-Marquardt; Nocedal and Wright, "Numerical Optimization", 2006, section
10.3).

The published runs are fitted by `bench/refit_training.py` and `bench/refit_serving.py`, a user's
own measurements by `training/measured.py` (`--measured`) and `simulate/fit.py` (`--steps`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from ridgeline.cost.arrays import Floats

LONGEST = 0.4
"""The step of one round at most, in log coefficient."""
STEP = 0.01
"""The step of the finite differences, in log coefficient."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number that is fitted: where it holds, and what is believed before the data."""

    key: str
    """The field of the coefficient."""
    prior: float
    spread: float
    """Standard deviation of the prior's logarithm."""
    low: float
    high: float
    why: str
    """Where the prior comes from."""
    architecture: str = ""
    """Start of the architecture's name; empty: all devices."""
    device: str = ""
    """Start of the device's name, for parts unlike others of their architecture; empty: all."""
    precisions: tuple[str, ...] = ()
    """The precisions of the matmuls that share this number; empty: all."""
    bits: int = 0
    """Bits of weights that are widened, rounded down; 0: all."""
    fabric: bool | None = None
    """Whether a fabric of their own joins the devices; None: either."""
    engine: str = ""
    """The class of engines; empty: all."""
    load: str = ""
    """`served` or `batch`; empty: both."""

    @property
    def name(self) -> str:
        """The name that files and reports give it."""
        joined = {True: "fabric", False: "bus", None: ""}[self.fabric]
        bits = f"{self.bits}-bit" if self.bits else ""
        kinds = "/".join(self.precisions)
        where = [self.architecture, self.device]
        parts = [self.key, *where, kinds, bits, joined, self.engine, self.load]
        return " ".join(part for part in parts if part)


class PriorFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a `priors.toml`."""

    parameter: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustFit:
    """A cost of errors and beliefs that is to be minimised."""

    errors: Callable[[Floats], Floats]
    """Logarithms of the coefficients → log(predicted / measured) of every row."""
    weights: Floats
    """How many errors of `loss_scale` each row's error counts for; 0 leaves it out."""
    loss_scale: float
    """The error in log from which the loss grows linearly."""
    prior: Floats
    spread: Floats
    low: Floats
    high: Floats
    linear: Floats | None = None
    """Known slopes of the last coefficients, one column each, where errors are linear in them."""
    slopes: Callable[[Floats], Floats] | None = None
    """Logarithms → slopes of the errors, one column a coefficient; None: finite differences."""

    def cost(self, logs: Floats, errors: Floats) -> float:
        """The cost of these errors and of leaving the priors: less is more plausible."""
        loss = 2.0 * (np.sqrt(1.0 + (errors / self.loss_scale) ** 2) - 1.0)
        return float(self.weights @ loss + (((logs - self.prior) / self.spread) ** 2).sum())

    def linearised(self, logs: Floats, errors: Floats) -> tuple[Floats, Floats]:
        """Curvature and half the gradient of the cost, errors taken as linear at `logs`."""
        slopes = self._differences(logs, errors) if self.slopes is None else self.slopes(logs)
        scale = self.loss_scale
        trust = self.weights / np.sqrt(1.0 + (errors / scale) ** 2) / scale**2
        curvature = (slopes * trust[:, None]).T @ slopes + np.diag(self.spread**-2)
        belief = (logs - self.prior) / self.spread**2
        return curvature, (slopes * trust[:, None]).T @ errors + belief

    def _differences(self, logs: Floats, errors: Floats) -> Floats:
        slopes = np.zeros((len(errors), len(logs)))
        known = 0 if self.linear is None else self.linear.shape[1]
        for index in range(len(logs) - known):
            moved = logs.copy()
            moved[index] += STEP
            slopes[:, index] = (self.errors(moved) - errors) / STEP
        if self.linear is not None:
            slopes[:, len(logs) - known :] = self.linear
        return slopes

    def minimise(self, start: Floats, *, rounds: int) -> Floats:
        """The best logarithms that were found from `start`.

        Damping grows until a step gains, and shrinks after it did.
        """
        logs, errors = start, self.errors(start)
        cost, damping = self.cost(logs, errors), 1e-2
        for _ in range(rounds):
            curvature, gradient = self.linearised(logs, errors)
            for _ in range(6):
                damped = curvature + damping * np.diag(np.diag(curvature))
                step = np.clip(-np.linalg.solve(damped, gradient), -LONGEST, LONGEST)
                trial = np.clip(logs + step, self.low, self.high)
                trial_errors = self.errors(trial)
                trial_cost = self.cost(trial, trial_errors)
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
        return logs
