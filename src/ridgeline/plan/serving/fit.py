"""Fit the coefficients of serving to published runs: robust least squares with priors.

As `plan/refit.py` does for training: errors are log(predicted / published), each source and metric
weighs as much as `SOURCE_ROWS` rows at most, large errors count in proportion to their size, and
every coefficient has a prior, so that a source can be left out without leaving one undetermined.
Each source also has an offset of its own per kind of metric (its version, flags and client): a
random effect with spread `OFFSET`, fitted along and thrown away, so that what differs between
sources in common does not pull physics.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ridgeline.cost.layouts import Bools, Floats
from ridgeline.plan.least_squares import minimised
from ridgeline.plan.serving.coefficients import priors
from ridgeline.plan.serving.outcome import Prepared, family, floor_reason, in_metric, outcome

SOURCE_ROWS = 10
"""Rows that one kind of metric of one source counts for, however many it has."""
EXPERT_WEIGHT = 0.5
"""Weight of a mixture's row: what engines make of experts changes between releases."""
LOSS_SCALE = 0.08
"""Error in log from which the loss grows linearly: about the noise between releases."""
OFFSET = 0.10
"""Standard deviation of what a source's version, flags and client do to all of its rows."""
STEP = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Runs with their weights and the random effects of their sources."""

    prepared: Prepared
    weights: Floats
    groups: Floats
    """One column per source and kind of metric: 1 where a row belongs to it."""

    @property
    def num_parameters(self) -> int:
        """Of physics, without offsets."""
        return len(priors())

    @property
    def prior(self) -> Floats:
        """Logarithms, then offsets of 0."""
        return np.concatenate(
            [np.log([one.prior for one in priors()]), np.zeros(self.groups.shape[1])]
        )

    @property
    def spread(self) -> Floats:
        """Of the priors, then of the offsets."""
        own = [one.spread for one in priors()]
        return np.concatenate([own, np.full(self.groups.shape[1], OFFSET)])

    def errors(self, logs: Floats) -> Floats:
        """Of every row; 0 where it has no weight."""
        count = self.num_parameters
        found = log_errors(self.prepared, logs[:count]) + self.groups @ logs[count:]
        return np.where(self.weights > 0.0, found, 0.0)

    def cost(self, logs: Floats, errors: Floats) -> float:
        """Less is more plausible."""
        loss = 2.0 * (np.sqrt(1.0 + (errors / LOSS_SCALE) ** 2) - 1.0)
        return float(self.weights @ loss + (((logs - self.prior) / self.spread) ** 2).sum())

    def linearised(self, logs: Floats, errors: Floats) -> tuple[Floats, Floats]:
        """Curvature and half the gradient of the cost, errors taken as linear at `logs`."""
        count = self.num_parameters
        slopes = np.zeros((len(errors), len(logs)))
        for index in range(count):
            moved = logs.copy()
            moved[index] += STEP
            slopes[:, index] = (self.errors(moved) - errors) / STEP
        slopes[:, count:] = self.groups
        trust = self.weights / np.sqrt(1.0 + (errors / LOSS_SCALE) ** 2) / LOSS_SCALE**2
        curvature = (slopes * trust[:, None]).T @ slopes + np.diag(self.spread**-2)
        belief = (logs - self.prior) / self.spread**2
        return curvature, (slopes * trust[:, None]).T @ errors + belief


def log_errors(prepared: Prepared, logs: Floats) -> Floats:
    """log(predicted / published) of every row, in its own metric."""
    predicted = in_metric(prepared, outcome(prepared, logs))
    return np.asarray(np.log(predicted / prepared.published))


def usable(prepared: Prepared) -> Bools:
    """Rows to fit to: possible, not saturated where that hides the answer, not called noisy."""
    found = outcome(prepared, np.log([one.prior for one in priors()]))
    good = []
    for index, run in enumerate(prepared.runs):
        waiting = family(run) == "first_token" and (found.saturated[index] or run.prompt < 1)
        burst = run.load.kind == "burst"
        impossible = floor_reason(run, prepared.hosted, index)
        good.append(not (run.noisy or waiting or burst or impossible or not found.fits[index]))
    return np.array(good)


def problem_of(prepared: Prepared, use: Bools) -> Problem:
    """Runs to fit to, those where `use` is true, sources weighing alike."""
    keys = [(run.source, family(run)) for run in prepared.runs]
    counts = Counter(key for key, used in zip(keys, use.tolist(), strict=True) if used)
    weights = [
        min(counts[key], SOURCE_ROWS) / counts[key] * (EXPERT_WEIGHT if run.model.experts else 1.0)
        if used
        else 0.0
        for key, run, used in zip(keys, prepared.runs, use.tolist(), strict=True)
    ]
    names = list(counts)
    groups = np.array([[float(key == name) for name in names] for key in keys])
    return Problem(prepared=prepared, weights=np.array(weights), groups=groups)


def fit(problem: Problem, start: Floats | None = None, rounds: int = 30) -> Floats:
    """The most plausible logarithms of the coefficients (damped Gauss-Newton)."""
    logs = problem.prior.copy()
    if start is not None:
        logs[: problem.num_parameters] = start
    free = np.full(problem.groups.shape[1], np.inf)  # offsets have no bounds
    found, _ = minimised(
        problem,
        logs,
        low=np.concatenate([np.log([one.low for one in priors()]), -free]),
        high=np.concatenate([np.log([one.high for one in priors()]), free]),
        rounds=rounds,
    )
    return found[: problem.num_parameters]


def fit_without(prepared: Prepared, use: Bools, start: Floats) -> dict[str, Floats]:
    """Source → coefficients fitted to all the others."""
    sources = np.array([run.source for run in prepared.runs])
    return {
        str(source): fit(problem_of(prepared, use & (sources != source)), start)
        for source in dict.fromkeys(sources.tolist())
    }
