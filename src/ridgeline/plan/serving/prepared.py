"""What published runs should have measured, by the model of `cost/`: all rows at once.

A row's metric is reached from seconds per token or to the first one by its own definition: TPOT
and ITL are of decoding alone, throughput counts all of a request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline import quantity
from ridgeline.cost.arrays import Bools, Floats, Ints
from ridgeline.cost.serving.disaggregated import WorkerPool, disaggregated_outcome
from ridgeline.cost.serving.load import KINDS, LoadOutcome, outcome_of
from ridgeline.cost.serving.mean_steps import RequestLengths
from ridgeline.cost.serving.replica_links import is_joined
from ridgeline.cost.serving.setting import HOSTED_FIELDS, Hosted
from ridgeline.cost.serving.step import least_step_seconds
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
    metrics: NDArray[np.str_]
    """The name of each row's metric."""
    replicas: Floats
    """Replicas whose speeds a row adds up; 1 where pools are counted together."""
    devices: Floats
    read_bytes: Floats
    """Bytes of weights that a step of one token reads on each device."""
    pools: tuple[WorkerPool, WorkerPool] | None
    """Prefill and decode of disaggregated runs, and stand-ins of the others."""
    is_split: Bools
    """Whether a run is disaggregated."""


def prepare(runs: Sequence[PublishedServing]) -> PreparedServing:
    """The arrays of these runs."""
    hosted = _hosted([run.hosted for run in runs])
    return PreparedServing(
        runs=list(runs),
        hosted=hosted,
        lengths=RequestLengths(
            prompt=np.array([max(run.prompt, 1.0) for run in runs]),
            completion=np.array([run.completion for run in runs]),
            chunk=np.array([run.chunk for run in runs]),
            balance=np.array(
                [0.0 if run.prefill else float(run.engine.balance_steps) for run in runs]
            ),
            piece=np.full(len(runs), np.inf),
            most_sequences=np.array([run.most_sequences for run in runs]),
            reserved=np.array([run.engine.reserved for run in runs]),
            by_prompt=np.array([float(run.engine.by_prompt) for run in runs]),
            checked=np.ones(len(runs)),
            yielded=np.ones(len(runs)),
            guessing=np.zeros(len(runs)),
            prompts_first=np.array([float(run.engine.prompts_first) for run in runs]),
            lockstep=np.array([float(run.note.alike and run.engine.prompts_first) for run in runs]),
            varied=np.array([float(run.note.conversations) for run in runs]),
            even=np.array([float(run.note.random or run.spans) for run in runs]),
            rounds=np.array([rounds_of(run) for run in runs]),
            together=np.array([together_of(run) for run in runs]),
        ),
        where=places([situation_of(run) for run in runs]),
        kind=np.array([KINDS.index(run.load.kind) for run in runs]),
        number=np.array([run.load.number for run in runs]),
        published=np.array([run.published for run in runs]),
        metrics=np.array([run.metric for run in runs]),
        replicas=np.array([1.0 if run.prefill else float(run.replicas) for run in runs]),
        devices=np.array([float(run.devices) for run in runs]),
        read_bytes=np.array([weights_read(run) for run in runs]),
        pools=_pools(runs, hosted),
        is_split=np.array([run.prefill is not None for run in runs]),
    )  # fmt: skip


def rounds_of(run: PublishedServing) -> float:
    """Requests that each client sends until the run ends; infinite where that is not stated."""
    if run.note.requests is None or run.load.kind != "closed":
        return math.inf
    return max(run.note.requests / run.load.number, 1.0)


def together_of(run: PublishedServing) -> float:
    """Share of new prompts that come when all clients start; not a number: not stated."""
    rounds = rounds_of(run)
    if run.note.seen_before:
        return 0.0
    return 1.0 / rounds if math.isfinite(rounds) else math.nan


def situation_of(run: PublishedServing) -> Situation:
    """What decides a run's coefficients."""
    return Situation(
        architecture=run.device.architecture,
        device=run.device.name,
        precision=run.precision,
        widened=run.widened,
        fabric=is_joined(run.device, int(run.hosted["ranks"] * run.hosted["groups"])),
        engine=run.engine.name,
        like=run.engine.like,
        served=run.load.kind != "static",
    )


def outcome(prepared: PreparedServing, logs: Floats) -> LoadOutcome:
    """What each run should show, coefficients being at these logarithms."""
    rates = rates_at(prepared.where, logs)
    one = outcome_of(prepared.hosted, rates, prepared.lengths, prepared.kind, prepared.number)
    if prepared.pools is None:
        return one
    prefill, decode = (pool.take(prepared.is_split) for pool in prepared.pools)
    parts = rates.take(prepared.is_split), prepared.lengths.take(prepared.is_split)
    two = disaggregated_outcome(prefill, decode, *parts, prepared.number[prepared.is_split])
    fields = {}
    for name in LoadOutcome.__dataclass_fields__:
        fields[name] = getattr(one, name).copy()
        fields[name][prepared.is_split] = getattr(two, name)
    return LoadOutcome(**fields)


def _pools(
    runs: Sequence[PublishedServing], hosted: Hosted
) -> tuple[WorkerPool, WorkerPool] | None:
    """Both pools of every run, of one without any the run itself; None: no run has pools."""
    if not any(run.prefill for run in runs):
        return None
    first = [run.prefill.hosted if run.prefill else run.hosted for run in runs]
    stated = [run.prefill.decode.most_sequences if run.prefill else None for run in runs]
    prefill = WorkerPool(
        hosted=_hosted(first),
        workers=np.array([float(run.prefill.pool.workers if run.prefill else 1) for run in runs]),
        most_sequences=np.full(len(runs), np.inf),
    )
    decode = WorkerPool(
        hosted=hosted,
        workers=np.array([float(run.replicas) for run in runs]),
        most_sequences=np.array([number or np.inf for number in stated]),
    )
    return prefill, decode


def _hosted(fields: Sequence[Mapping[str, float]]) -> Hosted:
    columns = {name: np.array([one[name] for one in fields], float) for name in HOSTED_FIELDS}
    return Hosted(**columns)


def in_metric(prepared: PreparedServing, found: LoadOutcome) -> Floats:
    """Each row's prediction in its own metric."""
    lengths, first, each = prepared.lengths, found.first_token_seconds, found.next_token_seconds
    speed = found.tokens_per_second * prepared.replicas
    whole = first + (lengths.completion - 1.0) * each
    values = {
        "output_tokens_per_s_total": speed,
        "output_tokens_per_s_per_gpu": speed / prepared.devices,
        "total_tokens_per_s": speed * (lengths.prompt + lengths.completion) / lengths.completion,
        "requests_per_s": speed / lengths.completion,
        "tokens_per_s_batch1": 1.0 / each,
        "tokens_per_s_each": 1.0 / each,
        "bandwidth_gbs": prepared.read_bytes / each / 1e9,
    }
    for metric, unit in LATENCIES.items():
        kind = metric.partition("_")[0]
        values[metric] = {"ttft": first, "e2e": whole}.get(kind, each) / unit
    chosen = [prepared.metrics == name for name in values]
    return np.asarray(np.select(chosen, list(values.values())))


def weights_read(run: PublishedServing) -> float:
    """Bytes of weights that a step of one token reads on each device."""
    return run.hosted["shared_bytes"] + run.hosted["expert_bytes"] * run.hosted["expert_share"]


def family(run: PublishedServing) -> str:
    """Which spread a metric has: `first_token`, `next_token` or `throughput`."""
    if run.metric.startswith("ttft"):
        return "first_token"
    if run.metric.startswith(("itl", "tpot", "tokens_per_s_", "bandwidth")):
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
        f" multiplying takes {run.device.name} x {run.layout.devices} at least"
        f" {quantity.seconds(least)}"
    )


def _least(hosted: Hosted, tokens: float) -> float:
    return float(least_step_seconds(hosted, np.array([max(tokens, 1.0)]))[0])


def _speed_reason(run: PublishedServing, hosted: Hosted) -> str:
    """Throughput beyond the peak of the matmuls, or of reading weights for so few sequences."""
    per_second = {
        "requests_per_s": run.published * run.completion,
        "output_tokens_per_s_per_gpu": run.published * run.devices,
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
        f"above the ceiling: {per_second:.4g} tokens/s, but {run.device.name} x"
        f" {run.layout.devices} cannot read and multiply for more than"
        f" {1.0 / least * run.replicas:.4g}"
    )
