"""The times of an engine's steps, fitted to its own step log.

The terms are those of `cost/serving/step.py`, in seconds of this engine and without a data sheet:

    (w^p + (t T)^p)^(1/p) + a A + q Q + c C + f        w, t, a, q, c, f >= 0, p = `BLEND`

for a step of T tokens in all, A sequences that are sampled, Q pairs of query and key, and C tokens
in the caches of those that decode. Logarithms of the six are fitted by robust least squares of
log(fitted / measured), so that none can be below 0; steps with and without prompts weigh the same.
At the end all are scaled, so that the whole log takes as long as it did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from ridgeline.cost.arrays import Floats
from ridgeline.cost.serving.clock import StepClock
from ridgeline.errors import InputError
from ridgeline.plan.fitting import RobustFit
from ridgeline.plan.serving.question import BEYOND
from ridgeline.plan.simulate.engine_time import EngineTime
from ridgeline.records.input_file import read_json
from ridgeline.records.load_test import Lengths, Percentiles
from ridgeline.records.step_log import StepRow, StepWork

LEAST_ROWS = 20
"""Steps with prompts, and steps without: fewer tell too little."""
MOST_ROWS = 300
"""Steps of either kind that are fitted to at most, spread over the log."""
LOSS_SCALE = 0.1
"""Error in log from which the loss grows linearly."""
STALL = math.log(3.0)
"""Error in log from which something else held the machine up."""
SEGMENTS = 20
"""Segments of the log, between which the engine's speed is seen to vary."""
LOOSE = 4.0
"""Standard deviation of what is believed of a logarithm before the log: next to nothing."""
_TERMS = (
    "shared_read_seconds", "token_seconds", "sequence_seconds", "pair_seconds", "cache_seconds",
    "fixed_host_seconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What a step log says."""

    time: EngineTime
    sigma: float
    """Standard deviation of log(measured / fitted) between the log's segments."""
    rows: int


def fit_steps(rows: Sequence[StepRow]) -> Fitted:
    """Fit a clock to a step log.

    Raises:
        InputError: Too few steps of either kind.
    """
    prompts = [row for row in rows if row.work.prompt_tokens]
    decodes = [row for row in rows if not row.work.prompt_tokens]
    if min(len(prompts), len(decodes)) < LEAST_ROWS:
        raise InputError(
            f"--steps: {len(prompts)} steps with prompts and {len(decodes)} without; at least"
            f" {LEAST_ROWS} of each are needed: log a longer run"
        )
    problem = _problem((*_some(prompts), *_some(decodes)))
    logs = problem.minimise(problem.prior, rounds=100)
    clock = clock_of(logs)
    measured = np.array([row.seconds for row in rows])
    fitted = np.array([seconds_of(clock, row.work) for row in rows])
    usual = np.abs(np.log(measured / fitted)) < STALL
    measured, fitted = measured[usual], fitted[usual]
    scale = float(measured.sum() / fitted.sum())
    return Fitted(
        time=EngineTime(
            clock=clock_of(logs + math.log(scale)),
            between_seconds=_between(rows),
            most=_most(rows),
        ),
        sigma=_spread(measured, fitted * scale),
        rows=len(rows),
    )


class _Alone(msgspec.Struct, frozen=True):
    """What is read of a load test's JSON."""

    arrivals: str
    ttft_seconds: Percentiles | None
    lengths: Lengths


def outside_of(fitted: Fitted, alone: Path, chunk: int) -> Fitted:
    """The same with the time that a request spends outside of the engine: HTTP, tokens, transport.

    It is what a client that is alone waits for its first token, less the steps of its prompt.

    Args:
        fitted: Of the same engine.
        alone: JSON of a load test with `--arrivals closed --concurrency 1`.
        chunk: Tokens of a step at most.

    Raises:
        InputError: The file is not that.
    """
    cure = "make it with `ridgeline loadtest URL --arrivals closed --concurrency 1 --json`"
    found = read_json(alone, _Alone, option="--alone", cure=cure)
    tokens = found.lengths.input_tokens
    if not found.arrivals.startswith("closed loop of 1,") or not found.ttft_seconds or not tokens:
        raise InputError(f"--alone {alone}: is no load test of one client; {cure}")
    left, start, inside = round(tokens), 0, 0.0
    while left:
        count = min(left, chunk)
        left -= count
        pairs = count * start + count * (count + 1) // 2
        inside += fitted.time.seconds(StepWork(count, pairs, int(not left)))
        start += count
    outside = max(0.0, found.ttft_seconds.p50 - inside)
    return replace(fitted, time=replace(fitted.time, request_seconds=outside))


def seconds_of(clock: StepClock, work: StepWork) -> float:
    """The time that a clock gives one step."""
    return clock(**work._asdict())


def clock_of(logs: Floats) -> StepClock:
    """The clock whose terms have these logarithms, in the order of the formula."""
    return StepClock(**dict(zip(_TERMS, np.exp(logs).tolist(), strict=True)))


def _problem(rows: Sequence[StepRow]) -> RobustFit:
    """A fit to these steps; each of the two kinds weighs a hundred, and little is believed."""
    prompt = np.array([row.work.prompt_tokens > 0 for row in rows])

    def errors(logs: Floats) -> Floats:
        clock = clock_of(logs)
        return np.log([seconds_of(clock, row.work) / row.seconds for row in rows])

    start = _start(rows)
    return RobustFit(
        errors=errors,
        weights=np.where(prompt, 100.0 / prompt.sum(), 100.0 / (~prompt).sum()),
        loss_scale=LOSS_SCALE,
        prior=start,
        spread=np.full(len(start), LOOSE),
        low=np.full(len(start), math.log(1e-13)),
        high=np.full(len(start), math.log(1e3)),
    )


def _start(rows: Sequence[StepRow]) -> Floats:
    """Logarithms of the right size."""
    least = min(row.seconds for row in rows)
    dense = [row for row in rows if row.work.prompt_tokens]
    token = min(row.seconds / row.work.prompt_tokens for row in dense)
    pairs = max(row.work.prompt_pairs / row.work.prompt_tokens for row in dense)
    context = max(1, *(row.work.decode_context for row in rows))
    guess = (least, token, token, 0.1 * token / pairs, 0.1 * least / context, 0.1 * least)
    return np.asarray(np.log(np.array(guess)))


def _some(rows: Sequence[StepRow]) -> Sequence[StepRow]:
    every = -(-len(rows) // MOST_ROWS)
    return rows[::every]


def _between(rows: Sequence[StepRow]) -> float:
    """Median of the gaps that no wait for requests is in."""
    gaps = [
        after.at_seconds - before.at_seconds - before.seconds
        for before, after in pairwise(rows)
        if before.left
    ]
    return max(0.0, float(np.median(gaps))) if gaps else 0.0


def _most(rows: Sequence[StepRow]) -> StepWork:
    largest = [max(column) for column in zip(*(row.work for row in rows), strict=True)]
    return StepWork(*(math.ceil(BEYOND * value) for value in largest))


def _spread(measured: Floats, fitted: Floats) -> float:
    """Between segments of equal numbers of steps."""
    count = min(SEGMENTS, len(measured) // 10)
    parts = zip(np.array_split(measured, count), np.array_split(fitted, count), strict=True)
    return float(np.std([math.log(one.sum() / other.sum()) for one, other in parts]))
