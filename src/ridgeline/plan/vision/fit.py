"""Fit the coefficients of vision models to published runs, and leave devices and families out.

Errors are log(predicted / published). Slopes are known: seconds are a sum of kinds of work, each
times its coefficient. Rows of one source, device, task and class of software count for
`GROUP_ROWS` at most, and have an offset of their own (version, clocks, client): a random effect
that is fitted along and thrown away, so that it does not pull what all have in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.cost.arrays import Bools, Floats, Ints
from ridgeline.cost.vision.coefficients import traits_of
from ridgeline.cost.vision.estimate import CORNER, total_seconds
from ridgeline.cost.vision.work import HOST, WORK, demand, is_processor, operator_arrays
from ridgeline.plan.fitting import RobustFit
from ridgeline.plan.vision.coefficients import trait_priors
from ridgeline.plan.vision.published import PublishedVision

LOSS_SCALE = 0.06
"""Error in log from which the loss grows linearly: about the noise between releases."""
OFFSET = 0.03
"""Standard deviation of what a group's version, clocks and client do to all of its rows."""
GROUP_ROWS = 400.0
"""Rows that a group of one source, device, task and software counts for, however many it has."""
ROW_WEIGHT = 0.15
"""How many independent rows a row counts for: those of one table share most of their error."""
PREDICTABLE_SPREAD = 8.0
"""Times a first estimate by the priors may be off before a row is left out of the fit: a unit or a
scenario is misread there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTimes:
    """Published runs as what a fit works on: a row a run."""

    runs: Sequence[PublishedVision]
    work: Floats
    """Seconds at the device's peaks, in the order of `WORK`."""
    traits: Floats
    """1 where the run has the trait, in the order of the priors."""
    processor: Bools
    logs: Floats
    """Logarithm of the published seconds."""
    groups: Ints
    """Which group of source, device, task and software a run is of."""

    def of(self, which: Ints) -> PreparedTimes:
        """The runs at these positions."""
        return PreparedTimes(
            runs=[self.runs[index] for index in which.tolist()],
            work=self.work[which],
            traits=self.traits[which],
            processor=self.processor[which],
            logs=self.logs[which],
            groups=self.groups[which],
        )


def prepare(runs: Sequence[PublishedVision]) -> PreparedTimes:
    """What the runs ask of their devices; each network is laid out once."""
    arrays = {
        (run.network.name, run.network.image_size): operator_arrays(run.network) for run in runs
    }
    names = [one.name for one in trait_priors()]
    keys = [(run.source, run.device.name, traits_of(run.device, run.setting)) for run in runs]
    order = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return PreparedTimes(
        runs=runs,
        work=np.array(
            [
                demand(arrays[run.network.name, run.network.image_size], run.device, run.setting)
                for run in runs
            ]
        ),
        traits=np.array([[float(name in key[2]) for name in names] for key in keys]),
        processor=np.array([is_processor(run.device) for run in runs]),
        logs=np.log([run.seconds for run in runs]),
        groups=np.array([order[key] for key in keys]),
    )


def predicted_logs(prepared: PreparedTimes, logs: Floats) -> Floats:
    """Logarithm of the predicted seconds of every run; `logs` has a row a trait."""
    spent = np.exp(prepared.traits @ logs) * prepared.work
    return np.log(total_seconds(spent, prepared.processor))


def prior_logs() -> Floats:
    """What is believed before any run is seen."""
    return np.array([one.logs for one in trait_priors()])


def usable_rows(prepared: PreparedTimes) -> Bools:
    """Runs that are not off by a whole factor of what can be: those to fit to."""
    errors = predicted_logs(prepared, prior_logs()) - prepared.logs
    return np.asarray(np.abs(errors) < np.log(PREDICTABLE_SPREAD))


def fit(prepared: PreparedTimes, use: Bools, start: Floats | None, *, rounds: int) -> Floats:
    """The most plausible logarithms, a row a trait, from the runs where `use` is true.

    Processors and GPUs share no trait, so each is a fit of its own; traits of no run stay as they
    are at the start.
    """
    found = (prior_logs() if start is None else start).copy()
    for place in (prepared.processor, ~prepared.processor):
        rows = use & place
        mine = np.asarray(prepared.traits[rows].any(axis=0))
        if mine.any():
            found[mine] = _fit_traits(prepared, rows, mine, found[mine], rounds)
    return found


def _fit_traits(
    prepared: PreparedTimes, use: Bools, mine: Bools, start: Floats, rounds: int
) -> Floats:
    """The same of the traits `mine` alone, from runs that have no other."""
    work, traits, logs = prepared.work[use], prepared.traits[use][:, mine], prepared.logs[use]
    processor, groups = prepared.processor[use], prepared.groups[use]
    counts = Counter(groups.tolist())
    offsets = (groups[:, None] == np.array(list(counts))[None, :]).astype(float)
    weights = np.array(
        [ROW_WEIGHT * min(1.0, GROUP_ROWS / counts[group]) for group in groups.tolist()]
    )
    shape, size = (traits.shape[1], len(WORK)), traits.shape[1] * len(WORK)

    def spent_at(found: Floats) -> Floats:
        return np.asarray(np.exp(traits @ found[:size].reshape(shape)) * work)

    def errors(found: Floats) -> Floats:
        times = total_seconds(spent_at(found), processor)
        return np.asarray(np.log(times) + offsets @ found[size:] - logs)

    def slopes(found: Floats) -> Floats:
        shares = _shares(spent_at(found), processor)
        columns = (traits[:, :, None] * shares[:, None, :]).reshape(len(logs), size)
        return np.concatenate([columns, offsets], axis=1)

    believed = np.concatenate([prior_logs()[mine].ravel(), np.zeros(offsets.shape[1])])
    spread = np.array([one.deviations for one in trait_priors()])[mine].ravel()
    free = np.full(len(believed), np.inf)
    problem = RobustFit(
        errors=errors,
        weights=weights,
        loss_scale=LOSS_SCALE,
        prior=believed,
        spread=np.concatenate([spread, np.full(offsets.shape[1], OFFSET)]),
        low=-free,
        high=free,
        slopes=slopes,
    )
    first = believed.copy()
    first[:size] = start.ravel()
    return problem.minimise(first, rounds=rounds)[:size].reshape(shape)


def _shares(spent: Floats, processor: Bools) -> Floats:
    """Slopes of log(seconds) to the logarithm of each kind of work's seconds."""
    total = total_seconds(spent, processor)
    shares = spent / total[:, None]
    for part in (slice(None, -HOST), slice(-HOST, None)):
        weight = spent[:, part].sum(axis=1) / total
        shares[:, part] *= np.where(processor, 1.0, weight ** (CORNER - 1.0))[:, None]
    return np.asarray(shares)


def fit_without(
    prepared: PreparedTimes, use: Bools, names: Sequence[str], start: Floats, *, rounds: int
) -> dict[str, Floats]:
    """Name of a device or family → coefficients from all runs but its own."""
    of = np.array(names)
    found = {}
    for name in dict.fromkeys(of.tolist()):
        seen = use & (of != name)
        places = np.unique(prepared.processor[of == name])
        found[str(name)] = fit(
            prepared, seen & np.isin(prepared.processor, places), start, rounds=rounds
        )
    return found
