"""What published runs should have measured, by the model of `cost/`: all rows at once.

A row's metric is reached from seconds per token or to the first one by its own definition: TPOT
and ITL are of decoding alone, throughput counts all of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline import quantity
from ridgeline.cost.inference import Hosted, Rates, least_step_seconds, sequences_that_fit
from ridgeline.cost.layouts import Bools, Floats, Ints
from ridgeline.cost.serving_load import (
    Lengths,
    decode_seconds,
    first_token_seconds,
    most_running,
    prompt_seconds,
    static_seconds,
    steady_step,
)
from ridgeline.hardware.catalogue import peer_bandwidth_bytes_per_second
from ridgeline.plan.serving.coefficients import Situation, places, rates_at
from ridgeline.plan.serving.hosting import HOSTED_FIELDS
from ridgeline.plan.serving.published import LATENCIES, Run

KINDS = ("static", "closed", "open", "saturated", "burst")
ROUNDS = 30
"""Of finding the sequences that an open loop keeps running (Little's law), damped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Runs as arrays."""

    runs: list[Run]
    hosted: Hosted
    lengths: Lengths
    where: dict[str, Ints]
    kind: Ints
    """Index into `KINDS`."""
    number: Floats
    """Of the load."""
    published: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of each run, whatever its metric."""

    first_token_seconds: Floats
    next_token_seconds: Floats
    """Mean over a request of the time between its tokens."""
    tokens_per_second: Floats
    """Answers' tokens, of one replica."""
    running: Floats
    """Sequences that decode at once."""
    saturated: Bools
    """Requests wait for a place: the time to the first token grows with the length of the run."""
    fits: Bools
    """The weights and at least one sequence fit in the memory."""


def prepare(runs: Sequence[Run]) -> Prepared:
    """The arrays of these runs."""
    return Prepared(
        runs=list(runs),
        hosted=Hosted(**{
            name: np.array([run.hosted[name] for run in runs], dtype=np.float64)
            for name in HOSTED_FIELDS
        }),
        lengths=Lengths(
            prompt=np.array([max(run.prompt, 1.0) for run in runs]),
            answer=np.array([run.answer for run in runs]),
            chunk=np.array([run.chunk for run in runs]),
            most_sequences=np.array([run.most_sequences for run in runs]),
            reserved=np.array([run.engine.reserved for run in runs]),
        ),
        where=places([situation_of(run) for run in runs]),
        kind=np.array([KINDS.index(run.load.kind) for run in runs]),
        number=np.array([run.load.number for run in runs]),
        published=np.array([run.published for run in runs]),
    )  # fmt: skip


def situation_of(run: Run) -> Situation:
    """What decides a run's coefficients."""
    return Situation(
        architecture=run.device.architecture,
        precision=run.precision,
        widened=run.widened,
        fabric=run.hosted["link"] == peer_bandwidth_bytes_per_second(run.device),
        engine=run.engine.name,
        served=run.load.kind != "static",
    )


def outcome(prepared: Prepared, logs: Floats) -> Outcome:
    """What each run should show, coefficients being at these logarithms."""
    rates = rates_at(prepared.where, logs)
    return outcome_of(prepared.hosted, rates, prepared.lengths, prepared.kind, prepared.number)


def outcome_of(
    hosted: Hosted, rates: Rates, lengths: Lengths, kind: Ints, number: Floats
) -> Outcome:
    """The same for arrays of cases."""
    static, is_open = kind == KINDS.index("static"), kind == KINDS.index("open")
    most = np.maximum(most_running(hosted, rates, lengths), 1.0)
    full = steady_step(hosted, rates, lengths, most).total
    wanted = np.where(is_open, _open_running(hosted, rates, lengths, number, most, is_open), number)
    held = np.maximum(sequences_that_fit(hosted, rates, lengths.prompt + lengths.answer), 1.0)
    limit = np.where(static, held, most)
    running = np.minimum(wanted, limit)
    # Clients that start together reach their longest together: a closed loop needs room for whole
    # answers, whatever the engine admits.
    closed = kind == KINDS.index("closed")
    most_whole = np.minimum(held * rates.occupancy, lengths.most_sequences)
    saturated = np.where(static, number > held, wanted >= np.where(closed, np.inf, limit))
    saturated = saturated | (closed & (number > np.minimum(most_whole, limit)))
    steady = steady_step(hosted, rates, lengths, running).total
    alone = decode_seconds(hosted, rates, lengths, running)
    none = np.zeros_like(running)
    batch_first = prompt_seconds(hosted, rates, lengths, running, none) + rates.request_seconds
    # An open loop's requests come one by one: what waits is the rest of a step, not a bunch.
    open_first = (
        prompt_seconds(hosted, rates, lengths, np.ones_like(running), running)
        + rates.request_seconds
        + 0.5 * steady
    )
    closed_first = first_token_seconds(hosted, rates, lengths, running)
    first = np.where(static, batch_first, np.where(is_open, open_first, closed_first))
    each = np.where(static, alone, steady)
    whole = static_seconds(hosted, rates, lengths, running)
    cycle = first + (lengths.answer - 1.0) * each
    speed = running * lengths.answer / np.where(static, whole, cycle)
    speed = np.where(saturated & ~static, most / full, speed)
    speed = np.where(is_open & ~saturated, number * lengths.answer, speed)
    burst = kind == KINDS.index("burst")
    waves = np.maximum(number / most, 1.0)
    queued = np.where(burst, (waves - 1.0) / 2.0 * lengths.answer * each, 0.0)
    filling = 0.5 * prompt_seconds(hosted, rates, lengths, running, none)
    first = np.where(burst, queued + filling, first)
    total = waves * lengths.answer * each + filling
    speed = np.where(burst, np.where(burst, number, 1.0) * lengths.answer / total, speed)
    return Outcome(
        first_token_seconds=first,
        next_token_seconds=each,
        tokens_per_second=speed,
        running=running,
        saturated=saturated & ~burst,
        fits=sequences_that_fit(hosted, rates, lengths.prompt + lengths.answer) >= 1.0,
    )


def _open_running(
    hosted: Hosted, rates: Rates, lengths: Lengths, rate: Floats, most: Floats, is_open: Bools
) -> Floats:
    """Sequences that requests at a rate keep running: rate times answer times seconds per token."""
    running = np.ones_like(most)
    if not is_open.any():
        return running
    per_second = np.where(is_open, rate, 1.0) * lengths.answer
    for _ in range(ROUNDS):
        seconds = steady_step(hosted, rates, lengths, np.minimum(running, most)).total
        running = 0.5 * running + 0.5 * per_second * seconds
    return running


def in_metric(prepared: Prepared, found: Outcome) -> Floats:
    """Each row's prediction in its own metric."""
    values = np.empty(len(prepared.runs))
    for index, run in enumerate(prepared.runs):
        values[index] = _one(run, found, index)
    return values


def _one(run: Run, found: Outcome, index: int) -> float:
    first = float(found.first_token_seconds[index])
    each = float(found.next_token_seconds[index])
    speed = float(found.tokens_per_second[index]) * run.replicas
    metric = run.metric
    if metric in LATENCIES:
        kind = metric.partition("_")[0]
        whole = first + (run.answer - 1.0) * each
        seconds = {"ttft": first, "e2e": whole}.get(kind, each)
        return seconds / LATENCIES[metric]
    if metric == "output_tokens_per_s_per_gpu":
        return speed / (run.replicas * run.tp)
    if metric == "total_tokens_per_s":
        return speed * (run.prompt + run.answer) / run.answer
    if metric == "requests_per_s":
        return speed / run.answer
    if metric == "tokens_per_s_batch1":
        return 1.0 / each
    if metric == "bandwidth_gbs":
        return weights_read(run) / each / 1e9
    return speed


def weights_read(run: Run) -> float:
    """Bytes of weights that a step of one token reads on each device."""
    return run.hosted["shared_bytes"] + run.hosted["expert_bytes"] * run.hosted["expert_share"]


def family(run: Run) -> str:
    """Which spread a metric has: `first_token`, `next_token` or `throughput`."""
    if run.metric.startswith("ttft"):
        return "first_token"
    if run.metric.startswith(("itl", "tpot", "tokens_per_s_batch1", "bandwidth")):
        return "next_token"
    return "throughput"


def floor_reason(run: Run, hosted: Hosted, index: int) -> str:
    """Why a published value cannot be: faster than reading the weights or multiplying them."""
    one = hosted.take(np.array([index]))
    kind = family(run)
    if kind == "throughput":
        return "" if run.metric.startswith("e2e") else _speed_reason(run, one)
    if run.metric in LATENCIES:
        seconds = run.published * LATENCIES[run.metric]
    elif run.metric == "bandwidth_gbs":
        seconds = weights_read(run) / (run.published * 1e9)
    else:
        seconds = 1.0 / run.published
    first = kind == "first_token"
    least = _least(one, run.prompt if first else 1.0)
    if seconds >= least:
        return ""
    what = "the first token" if first else "a token"
    return (
        f"below the floor: {quantity.seconds(seconds)} for {what}, but reading the weights and"
        f" multiplying takes {run.device.name} x {run.tp} at least {quantity.seconds(least)}"
    )


def _least(hosted: Hosted, tokens: float) -> float:
    return float(least_step_seconds(hosted, np.array([max(tokens, 1.0)]))[0])


def _speed_reason(run: Run, hosted: Hosted) -> str:
    """Throughput beyond the peak of the products, or of reading weights for so few sequences."""
    per_second = {
        "requests_per_s": run.published * run.answer,
        "output_tokens_per_s_per_gpu": run.published * run.tp * run.replicas,
        "total_tokens_per_s": run.published * run.answer / (run.prompt + run.answer),
    }.get(run.metric, run.published)
    per_replica = per_second / run.replicas
    steps = 1e6  # so many tokens that products decide
    least = _least(hosted, steps) / steps * (1.0 + run.prompt / run.answer)
    if run.load.kind in ("static", "closed"):
        running = max(run.load.number, 1.0)
        least = max(least, _least(hosted, running) / running)
    if per_replica * least <= 1.0:
        return ""
    return (
        f"above the ceiling: {per_second:.4g} tokens/s, but {run.device.name} x {run.tp} cannot"
        f" read and multiply for more than {1.0 / least * run.replicas:.4g}"
    )
