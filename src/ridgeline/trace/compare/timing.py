"""The ratio of two sides' times for the same work, with its 95 % interval, from what there is.

Best are repeats, three traces of each side or more, whose spread holds what changes from run to
run; then whole profiler steps, three on each side or more; else the two windows, with the noise of
what recurs in them. A side is one job or several repeats of it; a job is as slow as its slowest
rank. Intervals are of the logarithm, whose error is the relative error of the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import Floats
from ridgeline.trace.compare.noise import FEWEST, TimeError, error_of_mean, student_95
from ridgeline.trace.compare.times import RankTimes

Job = Sequence[RankTimes]
"""The ranks of one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRatio:
    """Time of B over time of A for the same work."""

    scale: str
    """What says how far it may be off: `repeats`, `steps` or `window`."""
    ratio: float
    low: float | None
    """95 % interval; None where nothing says how far the ratio may be off."""
    high: float | None


def time_ratio(
    a: Sequence[Job], b: Sequence[Job], works: Sequence[Floats], spread: float | None
) -> TimeRatio | None:
    """How long B takes for A's work; None where the two do not hold the same work.

    `works` is the work in each job of A and of B over that in the first job of A, and `spread` its
    relative error, None where it is not known.
    """
    steps_a, steps_b = ([_steps(job) for job in side] for side in (a, b))
    stepped = all(len(own) and own.sum() > 0 for own in (*steps_a, *steps_b))
    repeated = min(len(a), len(b)) >= FEWEST
    if stepped and repeated:
        means = [np.array([own.mean() for own in side]) for side in (steps_a, steps_b)]
        return _of_samples("repeats", means[0], means[1], 0.0)
    if stepped and min(sum(map(len, side)) for side in (steps_a, steps_b)) >= FEWEST:
        return _of_samples("steps", np.concatenate(steps_a), np.concatenate(steps_b), 0.0)
    if spread is None:
        return None
    windows = [np.array([_window(job).window_us for job in side]) for side in (a, b)]
    if min(one.min() for one in windows) <= 0:
        return None
    times = [own / work for own, work in zip(windows, works, strict=True)]
    if repeated:
        return _of_samples("repeats", times[0], times[1], spread)
    errors = [
        _window_error(side, own, work) for side, own, work in zip((a, b), times, works, strict=True)
    ]
    return _ratio("window", times[0], times[1], errors, spread)


def _steps(job: Job) -> Floats:
    """Lengths of the job's steps, that of its slowest rank in each.

    The first one is left out where enough others remain: caches and loaders start in it.
    """
    count = min(len(rank.step_lengths_us) for rank in job)
    longest: Floats = np.max([rank.step_lengths_us[:count] for rank in job], axis=0)
    return longest[1:] if count > FEWEST else longest


def _window(job: Job) -> RankTimes:
    return max(job, key=lambda rank: rank.window_us)


def _window_error(side: Sequence[Job], times: Floats, works: Floats) -> TimeError | None:
    """The error of the mean window: of what recurs in each, or of two that differ by more."""
    known = [error for job in side if (error := _window(job).noise) is not None]
    if len(known) < len(side):
        return None
    each = [one.error_us / work for one, work in zip(known, works.tolist(), strict=True)]
    within = math.hypot(*each) / len(each)
    between = float(times.std(ddof=1)) / math.sqrt(len(times)) if len(times) > 1 else 0.0
    freedom = min(one.freedom for one in known)
    return TimeError(error_us=max(within, between), freedom=freedom)


def _of_samples(scale: str, a: Floats, b: Floats, spread: float) -> TimeRatio:
    return _ratio(scale, a, b, [error_of_mean(a), error_of_mean(b)], spread)


def _ratio(
    scale: str, a: Floats, b: Floats, errors: Sequence[TimeError | None], spread: float
) -> TimeRatio:
    mean_a, mean_b = float(a.mean()), float(b.mean())
    ratio, (error_a, error_b) = mean_b / mean_a, errors
    if error_a is None or error_b is None:
        return TimeRatio(scale=scale, ratio=ratio, low=None, high=None)
    relative = math.hypot(error_a.error_us / mean_a, error_b.error_us / mean_b)
    reach = student_95(min(error_a.freedom, error_b.freedom)) * relative
    return TimeRatio(
        scale=scale,
        ratio=ratio,
        low=ratio * math.exp(-min(reach, 50.0)) * (1 - spread),
        high=ratio * math.exp(min(reach, 50.0)) * (1 + spread),
    )
