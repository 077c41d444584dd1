"""Update the coefficients by one to three load points of the user's own (`--measured`).

The shipped coefficients are the prior, with the spreads of `priors.toml`. What a figure is off by
is divided among the coefficients that it depends on, the pace of the system, which all its steps
share, and what is this load point's alone, by how far each is known to go. Other layouts, lengths
and loads are then predicted by what moved: a memory that is slower than thought is so for all.

A file holds one point or a list of up to three:

    {"users": 16, "ttft_seconds": 0.212, "tpot_seconds": 0.0091}
    {"rate": 4, "tp": 2, "prompt": 1000, "answer": 200, "output_tokens_per_second": 780}

What a point leaves out (`tp`, `prompt`, `answer`) is as in the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.serving.load import KINDS, LoadOutcome, outcome_of
from ridgeline.cost.serving.setting import check_layout
from ridgeline.errors import InputError
from ridgeline.plan.fitting import RobustFit
from ridgeline.plan.plausible import check_near
from ridgeline.plan.serving.coefficients import Calibration, priors
from ridgeline.plan.serving.estimate import arrays_of
from ridgeline.plan.serving.published import ServedLoad
from ridgeline.plan.serving.question import ServingQuestion
from ridgeline.plan.serving.spreads import Spread, class_of, crowd_factor
from ridgeline.records.estimate import CoefficientChange
from ridgeline.records.input_file import read_json

PACE_SPREAD = 0.1
"""Standard deviation of the pace of a system, in log."""
OWN_SPREAD = {"first_token": 0.1, "next_token": 0.05, "throughput": 0.05}
"""The same of what is one load point's alone: a queue at the start, a warm cache, noise."""
LOSS_SCALE = 1.0
"""Error in log of a figure from which the loss grows linearly: a user's own is no outlier."""
MEASURED_SIGMA = {"first_token": 0.4, "next_token": 0.18, "throughput": 0.11}
"""Spreads of other points of the same load once one is measured (accuracy_measured.md)."""
SMALLEST_CHANGE = 0.005
FIGURES = {
    "first_token": ("ttft_seconds", "seconds"),
    "next_token": ("tpot_seconds", "seconds"),
    "throughput": ("output_tokens_per_second", "tokens per second"),
}
"""Kind of metric → its field in a file, and the unit."""
MOST_CLIENTS = 1e6
"""Clients, or requests per second, of one replica at most."""
MOST_TOKENS = 1e8
CURE = 'give {"users": 16, "ttft_seconds": 0.212, "tpot_seconds": 0.0091}, or a list of up to three'


class MeasuredLoad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One load point as a file has it."""

    users: Annotated[float, msgspec.Meta(ge=1.0, le=MOST_CLIENTS)] | None = None
    rate: Annotated[float, msgspec.Meta(gt=0.0, le=MOST_CLIENTS)] | None = None
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    output_tokens_per_second: float | None = None
    tp: Annotated[int, msgspec.Meta(ge=1)] | None = None
    prompt: Annotated[float, msgspec.Meta(ge=1.0, le=MOST_TOKENS)] | None = None
    answer: Annotated[float, msgspec.Meta(ge=1.0, le=MOST_TOKENS)] | None = None

    def load(self) -> ServedLoad:
        """The way in which requests came.

        Raises:
            InputError: Not exactly one of `users` and `rate` is given.
        """
        number = self.users or self.rate
        if (self.users is None) == (self.rate is None) or number is None:
            raise InputError("give users or rate")
        return ServedLoad(kind="closed" if self.users else "open", number=number)

    def figures(self) -> dict[str, float]:
        """Kind of metric → what was measured, in seconds or tokens per second.

        Raises:
            InputError: There is none, or one is not above 0.
        """
        stated = {kind: getattr(self, field) for kind, (field, _) in FIGURES.items()}
        found = {name: one for name, one in stated.items() if one is not None}
        if not found or min(found.values()) <= 0.0:
            raise InputError("give ttft_seconds, tpot_seconds or output_tokens_per_second, above 0")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """A load point and the question that it answers."""

    replica: ServingQuestion
    load: ServedLoad
    figures: dict[str, float]


def read_measured(path: Path, replica: ServingQuestion) -> list[MeasuredPoint]:
    """The points of a file.

    Raises:
        InputError: With the file, what is wrong in it, and the cure.
    """
    content = read_json(path, object, option="--measured", cure=CURE)
    entries = content if isinstance(content, list) else [content]
    if not 1 <= len(entries) <= 3:
        raise InputError(f"--measured {path}: {len(entries)} points; give one to three")
    try:
        return [_point(entry, replica) for entry in entries]
    except (msgspec.ValidationError, InputError) as error:
        raise InputError(f"--measured {path}: {error}; {CURE}") from None


def _point(entry: Any, replica: ServingQuestion) -> MeasuredPoint:
    one = msgspec.convert(entry, MeasuredLoad)
    own = replace(
        replica,
        tp=one.tp or replica.tp,
        prompt=one.prompt or replica.prompt,
        completion=one.answer or replica.completion,
    )
    check_layout(own.model, own.layout)
    return MeasuredPoint(replica=own, load=one.load(), figures=one.figures())


def calibrate(
    points: Sequence[MeasuredPoint], shipped: Calibration
) -> tuple[Calibration, list[CoefficientChange]]:
    """A calibration that explains the points, and what moved.

    Raises:
        InputError: A point is of a server that queues: its figures say how long it ran.
    """
    start = shipped.logs()
    shown = [_outcome(point, shipped) for point in points]
    if any(one.saturated[0] for one in shown):
        raise InputError("--measured: at this load requests queue; measure below saturation")
    for point in points:
        expected = np.exp(_predicted(point, shipped, start)).tolist()
        for (kind, value), usual in zip(point.figures.items(), expected, strict=True):
            name, unit = FIGURES[kind]
            check_near(name, value, usual, unit)
    seen = np.log([value for point in points for value in point.figures.values()])
    kinds = [name for point in points for name in point.figures]

    def errors(logs: Floats) -> Floats:
        return np.concatenate([_predicted(point, shipped, logs) for point in points]) - seen

    problem = RobustFit(
        errors=errors,
        weights=np.array([(LOSS_SCALE / OWN_SPREAD[name]) ** 2 for name in kinds]),
        loss_scale=LOSS_SCALE,
        prior=start,
        spread=np.array([PACE_SPREAD if one.key == "pace" else one.spread for one in priors()]),
        low=np.log([one.low for one in priors()]),
        high=np.log([one.high for one in priors()]),
    )
    after = np.exp(problem.minimise(start, rounds=15)).tolist()
    changes = [
        CoefficientChange(name=one.name, before=before, after=value)
        for one, before, value in zip(priors(), np.exp(start).tolist(), after, strict=True)
        if abs(value / before - 1.0) > SMALLEST_CHANGE
    ]
    values = {one.name: value for one, value in zip(priors(), after, strict=True)}
    requests = float(np.mean([one.running[0] for one in shown]))
    changed = msgspec.structs.replace(
        shipped, values=values, sigma=_surer(shipped.sigma, requests), table=""
    )
    return changed, changes


def _surer(before: Spread, requests: float) -> Spread:
    """Spreads once a point with so many requests is measured: none is wider than before."""
    sides: dict[str, dict[str, float]] = {"near": {}, "far": {}}
    for kind, value in MEASURED_SIGMA.items():
        for experts in (False, True):
            name = class_of(kind, experts=experts)
            now = value / crowd_factor(name, requests)
            for side, found in sides.items():
                found[name] = min(now, getattr(before, side).get(name, now))
    return Spread(**sides)


def _outcome(point: MeasuredPoint, calibration: Calibration) -> LoadOutcome:
    arrays = arrays_of([point.replica], calibration)
    kind, number = np.array([KINDS.index(point.load.kind)]), np.array([point.load.number])
    return outcome_of(arrays.hosted, arrays.rates, arrays.lengths, kind, number)


def _predicted(point: MeasuredPoint, shipped: Calibration, logs: Floats) -> Floats:
    """Logarithms of the point's figures by coefficients at these logarithms."""
    values = {one.name: value for one, value in zip(priors(), np.exp(logs).tolist(), strict=True)}
    found = _outcome(point, msgspec.structs.replace(shipped, values=values))
    known = {
        "first_token": found.first_token_seconds,
        "next_token": found.next_token_seconds,
        "throughput": found.tokens_per_second,
    }
    return np.log([float(known[name][0]) for name in point.figures])
