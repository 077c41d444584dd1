"""One replica under one load: latencies, throughput, what bounds the step, how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.inference import TERMS, Hosted, Rates, cached_bytes
from ridgeline.cost.serving_clock import StepClock, clock_of
from ridgeline.cost.serving_load import Lengths, most_running, steady_step
from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.hardware.catalogue import peer_bandwidth_bytes_per_second
from ridgeline.hardware.facts import Device
from ridgeline.models.counts import parameter_count
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.serving.coefficients import (
    Calibration,
    Situation,
    places,
    rates_at,
    read_calibration,
)
from ridgeline.plan.serving.coverage import check_range, factor_of
from ridgeline.plan.serving.engines import engine as engine_called
from ridgeline.plan.serving.hosting import (
    HOSTED_FIELDS,
    WEIGHT_BITS,
    arithmetic,
    check_generates,
    default_cache,
    host,
    is_widened,
)
from ridgeline.plan.serving.outcome import KINDS, Outcome, outcome_of
from ridgeline.plan.serving.published import Load
from ridgeline.records.serving_plan import Deployment, Ranged, ServingEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What runs on what, for requests of what lengths."""

    model: ModelSpec
    device: Device
    tp: int = 1
    weights: str = "bf16"
    cache: str = ""
    """Empty: what such checkpoints come with."""
    engine: str = "python"
    prompt: float
    answer: float
    chunk: float | None = None
    most_sequences: float | None = None

    @property
    def cache_kind(self) -> str:
        """What the cache is kept in."""
        return self.cache or default_cache(self.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """Replicas as arrays, one case each."""

    hosted: Hosted
    rates: Rates
    lengths: Lengths

    def take(self, index: object) -> Arrays:
        """The cases at these positions."""
        return Arrays(
            hosted=self.hosted.take(index),
            rates=self.rates.take(index),
            lengths=self.lengths.take(index),
        )


def arrays_of(replicas: list[Replica], calibration: Calibration) -> Arrays:
    """The numbers of these replicas."""
    fields = [
        host(one.model, one.device, tp=one.tp, weights=one.weights, cache=one.cache_kind)
        for one in replicas
    ]
    engines = [engine_called(one.engine) for one in replicas]
    cases = [_situation(one, values["link"]) for one, values in zip(replicas, fields, strict=True)]
    pairs = list(zip(replicas, engines, strict=True))
    return Arrays(
        hosted=Hosted(**{name: np.array([one[name] for one in fields]) for name in HOSTED_FIELDS}),
        rates=rates_at(places(cases), calibration.logs()),
        lengths=Lengths(
            prompt=np.array([max(one.prompt, 1.0) for one in replicas]),
            answer=np.array([max(one.answer, 1.0) for one in replicas]),
            chunk=np.array([float(one.chunk or engine.chunk) for one, engine in pairs]),
            most_sequences=np.array(
                [float(one.most_sequences or engine.most_sequences) for one, engine in pairs]
            ),
            reserved=np.array([engine.reserved for engine in engines]),
        ),
    )


def _situation(one: Replica, link: float) -> Situation:
    return Situation(
        architecture=one.device.architecture,
        precision=arithmetic(one.device, one.weights),
        widened=WEIGHT_BITS[one.weights] if is_widened(one.device, one.weights) else 0.0,
        fabric=link == peer_bandwidth_bytes_per_second(one.device),
        engine=one.engine,
        served=True,
    )


def estimate_serving(
    replica: Replica, load: Load, calibration: Calibration | None = None
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
            f" {replica.prompt + replica.answer:.0f} tokens do not fit in {replica.tp} x"
            f" {replica.device.name}; raise tp or take fewer bits"
        )
    return _document(replica, load, arrays, found, known)


def check(replica: Replica, calibration: Calibration) -> None:
    """Refuse what does not generate, and what the fit knows nothing about."""
    check_generates(replica.model)
    asked = {
        "parameters": float(parameter_count(replica.model)),
        "tp": float(replica.tp),
        "prompt": replica.prompt,
        "answer": replica.answer,
    }
    check_range(calibration, asked)
    kind = arithmetic(replica.device, replica.weights)
    if calibration.rows and not seen(calibration, replica.device, kind):
        known = ", ".join(
            f"{name} ({', '.join(counts)})" for name, counts in calibration.rows.items()
        )
        raise InputError(
            f"{replica.device.name}: no published run of {replica.device.architecture} with {kind}"
            f" products is in the fit, so that no interval would be honest; known: {known}"
        )


def seen(calibration: Calibration, device: Device, kind: str) -> bool:
    """Whether the fit saw runs of such hardware; 16-bit kinds count as one."""
    sixteen = {"bf16", "fp16"}
    kinds = set(calibration.rows.get(device.architecture, {}))
    return bool(kinds & sixteen) if kind in sixteen else kind in kinds


def _document(
    replica: Replica, load: Load, arrays: Arrays, found: Outcome, calibration: Calibration
) -> ServingEstimate:
    hosted, lengths, spread = arrays.hosted, arrays.lengths, calibration.sigma
    wider = spread.experts if replica.model.experts else 1.0
    first, each, speed = (
        factor_of(sigma * wider)
        for sigma in (spread.first_token, spread.next_token, spread.throughput)
    )
    ttft, tpot = float(found.first_token_seconds[0]), float(found.next_token_seconds[0])
    steps = max(replica.answer - 1.0, 0.0)
    tokens = float(found.tokens_per_second[0])
    running = found.running
    most = np.maximum(most_running(hosted, arrays.rates, lengths), 1.0)
    full = steady_step(hosted, arrays.rates, lengths, most)
    step = steady_step(hosted, arrays.rates, lengths, running)
    breakdown = {name: float(getattr(step, name)[0]) for name in TERMS}
    # An open loop below saturation answers what arrives: its throughput is not in doubt.
    given = load.kind == "open" and not found.saturated[0]
    sure = 1.0 if given else speed
    return ServingEstimate(
        deployment=Deployment(
            model=replica.model.name,
            gpu=replica.device.name,
            tp=replica.tp,
            weights=replica.weights,
            cache=replica.cache_kind,
            engine=replica.engine,
        ),
        prompt_tokens=replica.prompt,
        answer_tokens=replica.answer,
        load=load.kind if math.isinf(load.number) else f"{load.kind} {load.number:g}",
        ttft_seconds=ranged(ttft, first),
        tpot_seconds=ranged(tpot, each),
        e2e_seconds=Ranged(
            value=ttft + steps * tpot,
            interval=(ttft / first + steps * tpot / each, ttft * first + steps * tpot * each),
        ),
        output_tokens_per_second=ranged(tokens, sure),
        requests_per_second=ranged(tokens / max(replica.answer, 1.0), sure),
        most_output_tokens_per_second=ranged(float((most / full.total)[0]), speed),
        running=float(running[0]),
        most_running=float(most[0]),
        saturated=bool(found.saturated[0]),
        step_seconds=float(step.total[0]),
        breakdown=breakdown,
        bottleneck=max(breakdown, key=lambda name: breakdown[name]),
        weight_bytes=float(hosted.resident_bytes[0]),
        cache_bytes_per_token=float((cached_bytes(hosted, np.array([1e4])) / 1e4)[0]),
        assumed=_assumed(replica),
    )


def _assumed(replica: Replica) -> list[str]:
    engine = engine_called(replica.engine)
    lines = [f"an engine of the class {engine.name}: {engine.why}"]
    if not replica.cache:
        lines.append(f"the cache is kept in {replica.cache_kind}, as usual with {replica.weights}")
    if replica.chunk is None:
        lines.append(f"steps carry at most {engine.chunk:,} prompt tokens")
    if replica.most_sequences is None:
        lines.append(f"at most {engine.most_sequences:,} sequences run at once")
    lines.append("no prefix is shared; latencies are those without drafting")
    return lines


def ranged(value: float, factor: float) -> Ranged:
    """A value with its 80 % interval."""
    return Ranged(value=value, interval=(value / factor, value * factor))


def replica_of(model: ModelSpec, gpu: str, **values: object) -> Replica:
    """A replica on the device called `gpu`."""
    weights = str(values.get("weights", "bf16"))
    if weights not in WEIGHT_BITS:
        raise InputError(f"weights {weights!r}: use one of {', '.join(WEIGHT_BITS)}")
    empty = Replica(model=model, device=catalogue.device(gpu), prompt=1.0, answer=1.0)
    return replace(empty, **values)  # type: ignore[arg-type]  # the fields of Replica


def step_clock(replica: Replica, calibration: Calibration | None = None) -> StepClock:
    """The time of this replica's steps, for a simulation that drives the scheduler itself.

    Raises:
        InputError: When the question lies outside the fitted range.
    """
    known = calibration or read_calibration()
    check(replica, known)
    arrays = arrays_of([replica], known)
    return clock_of(arrays.hosted, arrays.rates)
