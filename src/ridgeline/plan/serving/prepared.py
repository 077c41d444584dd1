"""What published runs should have measured, by the model of `cost/`: all rows at once.

A row's metric is reached from seconds per token or to the first one by its own definition: TPOT
and ITL are of decoding alone, throughput counts all of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline import quantity
from ridgeline.cost.arrays import Floats, Ints
from ridgeline.cost.serving.load import KINDS, LoadOutcome, RequestLengths, outcome_of
from ridgeline.cost.serving.setting import HOSTED_FIELDS, Hosted
from ridgeline.cost.serving.step import least_step_seconds
from ridgeline.hardware.catalogue import peer_bandwidth_bytes_per_second
from ridgeline.plan.serving.coefficients import Situation, places, rates_at
from ridgeline.plan.serving.published import LATENCIES, PublishedServing


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedServing:
    """Published runs as arrays, one case each."""

    runs: list[PublishedServing]
    hosted: Hosted
    lengths: RequestLengths
    where: dict[str, Ints]
    kind: Ints
    """The index into `KINDS`."""
    number: Floats
    """The number of each load."""
    published: Floats


def prepare(runs: Sequence[PublishedServing]) -> PreparedServing:
    """The arrays of these runs."""
    return PreparedServing(
        runs=list(runs),
        hosted=Hosted(**{
            name: np.array([run.hosted[name] for run in runs], dtype=np.float64)
            for name in HOSTED_FIELDS
        }),
        lengths=RequestLengths(
            prompt=np.array([max(run.prompt, 1.0) for run in runs]),
            completion=np.array([run.completion for run in runs]),
            chunk=np.array([run.chunk for run in runs]),
            most_sequences=np.array([run.most_sequences for run in runs]),
            reserved=np.array([run.engine.reserved for run in runs]),
        ),
        where=places([situation_of(run) for run in runs]),
        kind=np.array([KINDS.index(run.load.kind) for run in runs]),
        number=np.array([run.load.number for run in runs]),
        published=np.array([run.published for run in runs]),
    )  # fmt: skip


def situation_of(run: PublishedServing) -> Situation:
    """What decides a run's coefficients."""
    return Situation(
        architecture=run.device.architecture,
        precision=run.precision,
        widened=run.widened,
        fabric=run.hosted["link"] == peer_bandwidth_bytes_per_second(run.device),
        engine=run.engine.name,
        served=run.load.kind != "static",
    )


def outcome(prepared: PreparedServing, logs: Floats) -> LoadOutcome:
    """What each run should show, coefficients being at these logarithms."""
    rates = rates_at(prepared.where, logs)
    return outcome_of(prepared.hosted, rates, prepared.lengths, prepared.kind, prepared.number)


def in_metric(prepared: PreparedServing, found: LoadOutcome) -> Floats:
    """Each row's prediction in its own metric."""
    values = np.empty(len(prepared.runs))
    for index, run in enumerate(prepared.runs):
        values[index] = _one(run, found, index)
    return values


def _one(run: PublishedServing, found: LoadOutcome, index: int) -> float:
    first = float(found.first_token_seconds[index])
    each = float(found.next_token_seconds[index])
    speed = float(found.tokens_per_second[index]) * run.replicas
    metric = run.metric
    if metric in LATENCIES:
        kind = metric.partition("_")[0]
        whole = first + (run.completion - 1.0) * each
        seconds = {"ttft": first, "e2e": whole}.get(kind, each)
        return seconds / LATENCIES[metric]
    if metric == "output_tokens_per_s_per_gpu":
        return speed / (run.replicas * run.tp)
    if metric == "total_tokens_per_s":
        return speed * (run.prompt + run.completion) / run.completion
    if metric == "requests_per_s":
        return speed / run.completion
    if metric == "tokens_per_s_batch1":
        return 1.0 / each
    if metric == "bandwidth_gbs":
        return weights_read(run) / each / 1e9
    return speed


def weights_read(run: PublishedServing) -> float:
    """Bytes of weights that a step of one token reads on each device."""
    return run.hosted["shared_bytes"] + run.hosted["expert_bytes"] * run.hosted["expert_share"]


def family(run: PublishedServing) -> str:
    """Which spread a metric has: `first_token`, `next_token` or `throughput`."""
    if run.metric.startswith("ttft"):
        return "first_token"
    if run.metric.startswith(("itl", "tpot", "tokens_per_s_batch1", "bandwidth")):
        return "next_token"
    return "throughput"


def floor_reason(run: PublishedServing, hosted: Hosted, index: int) -> str:
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


def _speed_reason(run: PublishedServing, hosted: Hosted) -> str:
    """Throughput beyond the peak of the matmuls, or of reading weights for so few sequences."""
    per_second = {
        "requests_per_s": run.published * run.completion,
        "output_tokens_per_s_per_gpu": run.published * run.tp * run.replicas,
        "total_tokens_per_s": run.published * run.completion / (run.prompt + run.completion),
    }.get(run.metric, run.published)
    per_replica = per_second / run.replicas
    steps = 1e6  # so many tokens that matmuls decide
    least = _least(hosted, steps) / steps * (1.0 + run.prompt / run.completion)
    if run.load.kind in ("static", "closed"):
        running = max(run.load.number, 1.0)
        least = max(least, _least(hosted, running) / running)
    if per_replica * least <= 1.0:
        return ""
    return (
        f"above the ceiling: {per_second:.4g} tokens/s, but {run.device.name} x {run.tp} cannot"
        f" read and multiply for more than {1.0 / least * run.replicas:.4g}"
    )
