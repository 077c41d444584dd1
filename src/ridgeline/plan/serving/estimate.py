"""One replica under one load: latencies, throughput, what bounds the step, how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ridgeline import quantity
from ridgeline.batching.kept_tokens import CHUNK
from ridgeline.cost.serving.clock import StepClock, clock_of
from ridgeline.cost.serving.coefficients import Rates
from ridgeline.cost.serving.load import (
    KINDS,
    LoadOutcome,
    most_running,
    outcome_of,
)
from ridgeline.cost.serving.matmul_dtypes import is_widened, matmul_dtype, widening
from ridgeline.cost.serving.mean_steps import RequestLengths, steady_step
from ridgeline.cost.serving.replica_links import is_joined
from ridgeline.cost.serving.setting import (
    HOSTED_FIELDS,
    Hosted,
    cached_bytes,
    host,
)
from ridgeline.cost.serving.step import TERMS
from ridgeline.cost.serving.weight_formats import WEIGHT_BITS
from ridgeline.errors import InputError
from ridgeline.plan.serving.coefficients import (
    Calibration,
    Situation,
    places,
    rates_at,
    read_calibration,
)
from ridgeline.plan.serving.engines import engine as engine_called
from ridgeline.plan.serving.published import ServedLoad
from ridgeline.plan.serving.question import ServingQuestion, check, doubts
from ridgeline.plan.serving.spreads import FAR, factor_of
from ridgeline.plan.simulate.drafting import Drafting
from ridgeline.records.serving_plan import Ranged, ReplicaDeployment, ServingEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """Replicas as arrays, one case each."""

    hosted: Hosted
    rates: Rates
    lengths: RequestLengths

    def take(self, index: object) -> Arrays:
        """The cases at these positions."""
        return Arrays(
            hosted=self.hosted.take(index),
            rates=self.rates.take(index),
            lengths=self.lengths.take(index),
        )


def arrays_of(replicas: list[ServingQuestion], calibration: Calibration) -> Arrays:
    """The numbers of these replicas."""
    fields = [
        host(one.seen_model, one.device, one.layout, weights=one.weights, cache=one.cache_kind)
        for one in replicas
    ]
    engines = [engine_called(one.engine) for one in replicas]
    cases = [_situation(one) for one in replicas]
    pairs = list(zip(replicas, engines, strict=True))
    guesses = [one.drafting for one in replicas]
    return Arrays(
        hosted=Hosted(**{name: np.array([one[name] for one in fields]) for name in HOSTED_FIELDS}),
        rates=rates_at(places(cases), calibration.logs()),
        lengths=RequestLengths(
            prompt=np.array([max(one.prompt, 1.0) for one in replicas]),
            completion=np.array([max(one.completion, 1.0) for one in replicas]),
            chunk=np.array(
                [float(one.chunk or engine.chunk_on(one.device)) for one, engine in pairs]
            ),
            balance=np.array([float(engine.balance_steps) for engine in engines]),
            piece=np.array([CHUNK if one.kept is not None else math.inf for one in replicas]),
            most_sequences=np.array(
                [float(one.most_sequences or engine.most_on(one.device)) for one, engine in pairs]
            ),
            reserved=np.array([engine.reserved for engine in engines]),
            by_prompt=np.array([float(engine.by_prompt) for engine in engines]),
            checked=np.array([1.0 + (one.num_drafts if one else 0) for one in guesses]),
            yielded=np.array([one.tokens_per_round if one else 1.0 for one in guesses]),
            guessing=np.array([one.cost * one.depth if one else 0.0 for one in guesses]),
            prompts_first=np.array([float(engine.prompts_first) for engine in engines]),
            lockstep=np.zeros(len(replicas)),
            varied=np.zeros(len(replicas)),
            even=np.zeros(len(replicas)),
            rounds=np.full(len(replicas), np.inf),
            together=np.full(len(replicas), np.nan),
        ),
    )


def _situation(one: ServingQuestion) -> Situation:
    return Situation(
        architecture=one.device.architecture,
        device=one.device.name,
        precision=matmul_dtype(one.device, one.weights),
        widened=WEIGHT_BITS[one.weights] if is_widened(one.device, one.weights) else 0.0,
        fabric=is_joined(one.device, one.layout.devices),
        engine=one.engine,
        like=engine_called(one.engine).like,
        served=True,
    )


def estimate_serving(
    replica: ServingQuestion, load: ServedLoad, calibration: Calibration | None = None
) -> ServingEstimate:
    """What one replica will do under a load.

    Raises:
        InputError: When the weights do not fit, or the question lies outside the fitted range.
    """
    known = calibration or read_calibration()
    check(replica, known)
    arrays = arrays_of([replica], known)
    found = outcome_of(
        arrays.hosted,
        arrays.rates,
        arrays.lengths,
        np.array([KINDS.index(load.kind)]),
        np.array([load.number]),
    )
    if not found.fits[0]:
        raise InputError(
            f"{replica.model.name} in {replica.weights} and one request of"
            f" {replica.prompt + replica.completion:.0f} tokens do not fit in {replica.tp} x"
            f" {replica.device.name}; raise tp or take fewer bits"
        )
    return _document(replica, load, arrays, found, known)


def _document(
    replica: ServingQuestion,
    load: ServedLoad,
    arrays: Arrays,
    found: LoadOutcome,
    calibration: Calibration,
) -> ServingEstimate:
    hosted, lengths = arrays.hosted, arrays.lengths
    unsure = doubts(replica, calibration)
    # Of an architecture that no run is of, spreads are wide as they stand.
    wider = FAR if unsure and replica.device.architecture in calibration.rows else 1.0
    first, each, speed = (
        factor_of(wider * calibration.sigma_of(kind, replica.place, float(found.running[0])))
        for kind in ("first_token", "next_token", "throughput")
    )
    ttft, tpot = float(found.first_token_seconds[0]), float(found.next_token_seconds[0])
    steps = max(replica.completion - 1.0, 0.0)
    tokens = float(found.tokens_per_second[0])
    running = found.running
    most = np.maximum(most_running(hosted, arrays.rates, lengths), 1.0)
    full = steady_step(hosted, arrays.rates, lengths, most)
    step = steady_step(hosted, arrays.rates, lengths, running)
    breakdown = {name: float(getattr(step, name)[0]) for name in TERMS}
    # An open loop below saturation serves what arrives: its throughput is not in doubt.
    given = load.kind == "open" and not found.saturated[0]
    sure = 1.0 if given else speed
    return ServingEstimate(
        deployment=ReplicaDeployment(
            model=replica.model.name,
            gpu=replica.device.name,
            tp=replica.tp,
            weights=replica.weights,
            cache=replica.cache_kind,
            engine=replica.engine,
        ),
        prompt_tokens=replica.prompt,
        answer_tokens=replica.completion,
        load=load.kind if math.isinf(load.number) else f"{load.kind} {load.number:g}",
        ttft_seconds=ranged(ttft, first),
        tpot_seconds=ranged(tpot, each),
        e2e_seconds=Ranged(
            value=ttft + steps * tpot,
            interval=(ttft / first + steps * tpot / each, ttft * first + steps * tpot * each),
        ),
        output_tokens_per_second=ranged(tokens, sure),
        requests_per_second=ranged(tokens / max(replica.completion, 1.0), sure),
        most_output_tokens_per_second=ranged(
            float((most * lengths.yielded / full.total)[0]), speed
        ),
        running=float(running[0]),
        most_running=float(most[0]),
        saturated=bool(found.saturated[0]),
        step_seconds=float(step.total[0]),
        breakdown=breakdown,
        bottleneck=max(breakdown, key=lambda name: breakdown[name]),
        weight_bytes=float(hosted.resident_bytes[0]),
        cache_bytes_per_token=_bytes_per_token(hosted, replica),
        state_bytes=float(hosted.state_bytes[0]),
        assumed=[*_assumed(replica), *unsure],
    )


def _bytes_per_token(hosted: Hosted, replica: ServingQuestion) -> float:
    """Cache of one token, of 10,000 or of all that are kept."""
    kept = replica.kept
    context = 1e4 if kept is None else float(kept.recent + kept.first)
    return float(((cached_bytes(hosted, np.array([context])) - hosted.state_bytes) / context)[0])


def hosting_assumptions(replica: ServingQuestion) -> list[str]:
    """What is assumed of a replica's device, engine and cache, whatever it is asked."""
    engine, device = engine_called(replica.engine), replica.device
    lines = [*device.assumed, f"an engine of the class {engine.name}: {engine.why}"]
    if is_widened(device, replica.weights):
        lines.append(widening(device, replica.weights))
    if not replica.cache:
        lines.append(f"the cache is kept in {replica.cache_kind}, as usual with {replica.weights}")
    return lines


def _assumed(replica: ServingQuestion) -> list[str]:
    engine, device = engine_called(replica.engine), replica.device
    lines = hosting_assumptions(replica)
    if replica.chunk is None:
        lines.append(f"steps carry at most {engine.chunk_on(device):,.0f} prompt tokens")
    if replica.most_sequences is None:
        lines.append(f"at most {engine.most_on(device):,.0f} sequences run at once")
    if replica.kept is not None:
        lines.append(
            f"each token sees the last {replica.kept.recent} and the first {replica.kept.first}"
            f" alone, and of a prompt a step computes {CHUNK} tokens at most: other answers than"
            " the whole model's (ridgeline evaluate --kv-recent)"
        )
    lines.append(f"no prefix is shared; latencies are those {_guessed(replica.drafting)}")
    return lines


def _guessed(drafting: Drafting | None) -> str:
    if drafting is None:
        return "without drafting"
    return (
        f"of {drafting.num_drafts} guesses a step, of which as many hold as was said; making them"
        f" takes {quantity.percent(drafting.cost * drafting.depth)} of a step without them"
    )


def ranged(value: float, factor: float) -> Ranged:
    """A value with its 80 % interval."""
    return Ranged(value=value, interval=(value / factor, value * factor))


def step_clock(replica: ServingQuestion, calibration: Calibration | None = None) -> StepClock:
    """The time of this replica's steps, for a simulation that drives the scheduler itself.

    Raises:
        InputError: When the question lies outside the fitted range.
    """
    known = calibration or read_calibration()
    check(replica, known)
    arrays = arrays_of([replica], known)
    return clock_of(arrays.hosted, arrays.rates)
