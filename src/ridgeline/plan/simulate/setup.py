"""A deployment in the numbers that a simulation needs, and how sure these are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from ridgeline.batching.scaling.policies import Policy
from ridgeline.batching.scaling.settings import Scaling
from ridgeline.cost.serving.kv_cache import bytes_per_token
from ridgeline.cost.serving.setting import cached_bytes
from ridgeline.cost.serving.step import sequences_that_fit
from ridgeline.errors import InputError
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.serving.coefficients import read_calibration
from ridgeline.plan.serving.engines import engine as engine_called
from ridgeline.plan.serving.estimate import arrays_of, hosting_assumptions, step_clock
from ridgeline.plan.serving.question import replica_of
from ridgeline.plan.serving.spreads import CROWDING, Neighbourhood, class_of
from ridgeline.plan.simulate.deployment import (
    Deployment,
    ReplicaEngine,
    Setup,
    check_deployment,
)
from ridgeline.plan.simulate.engine_time import EngineTime
from ridgeline.plan.simulate.fit import Fitted
from ridgeline.records.load import Load
from ridgeline.records.request_trace import Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationQuestion:
    """What is the same for all fleets that are compared."""

    load: Load
    trace: list[Traced]
    """Scaled; empty where none is replayed."""
    seed: int
    model: ModelSpec | None
    measured: Fitted | None
    policy: Callable[[], Policy] | None = None
    """Makes what decides of a fleet that scales; None: what its settings say."""

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Tokens of a prompt and of a completion."""
        if not self.trace:
            return float(self.load.input_tokens), float(self.load.output_tokens)
        count = len(self.trace)
        return (
            sum(one.input_tokens for one in self.trace) / count,
            sum(one.output_tokens for one in self.trace) / count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsure:
    """Standard deviations of logarithms."""

    step: float
    """The spread of the engine's steps."""
    first_token: float = 0.0
    """The spread of the time to the first token of a request alone, as it scattered in the
    published runs; 0: steps say all."""
    crowding: float = 0.0
    """The power of the number of requests at once with which that grows."""

    def first_token_among(self, requests: float) -> float:
        """The spread of the time to the first token, so many requests running at once."""
        return float(self.first_token * max(requests, 1.0) ** self.crowding)


def setup_of(
    question: SimulationQuestion, deployment: Deployment, scaling: Scaling | None
) -> tuple[Setup, Unsure]:
    """On the hardware that is named, or as measured.

    Raises:
        InputError: The deployment cannot be, or nothing is known of it.
    """
    check_deployment(deployment, scaling)
    if question.measured is not None:
        setup, unsure = _as_measured(question, deployment, scaling, question.measured)
    elif question.model is not None and deployment.gpu:
        setup, unsure = _as_published(question, deployment, scaling, question.model)
    else:
        raise InputError("give --model and --gpu, or --steps with a measured engine's step log")
    return replace(setup, policy=question.policy), unsure


def _as_measured(
    question: SimulationQuestion, deployment: Deployment, scaling: Scaling | None, measured: Fitted
) -> tuple[Setup, Unsure]:
    plain = Deployment()
    told = ("gpu", "tp", "weights", "cache", "engine", "prefill_gpu", "prefill_tp", "kv_recent")
    for name in told:
        value = getattr(deployment, name)
        if value != getattr(plain, name):
            raise InputError(
                f"--{name.replace('_', '-')} {value}: a step log tells of the engine that wrote"
                " it; log another one, or leave --steps out"
            )
    if deployment.kv_blocks is None:
        raise InputError("--steps: say --kv-blocks, which `ridgeline serve` prints when ready")
    moved = 0.0
    if deployment.prefill_replicas:
        if question.model is None:
            raise InputError("--prefill-replicas: give --model, whose keys and values are moved")
        moved = bytes_per_token(question.model)
    setup = Setup(
        deployment=deployment,
        time=measured.time,
        kv_blocks=deployment.kv_blocks,
        kv_bytes_per_token=moved,
        scaling=scaling,
        seed=question.seed,
        paced=True,
    )
    return setup, Unsure(step=measured.sigma)


def _as_published(
    question: SimulationQuestion, deployment: Deployment, scaling: Scaling | None, model: ModelSpec
) -> tuple[Setup, Unsure]:
    engine_called(deployment.engine)
    prompt, completion = question.mean_lengths
    found = _hosted(question, deployment, model, deployment.gpu, deployment.tp)
    _require_room(found, model, deployment, prompt + completion)
    prefill = None
    if deployment.prefill_gpu or deployment.prefill_tp:
        gpu = deployment.prefill_gpu or deployment.gpu
        prefill = _hosted(question, deployment, model, gpu, deployment.prefill_tp or deployment.tp)
        _require_room(prefill, model, deployment, prompt)
    setup = Setup(
        deployment=msgspec.structs.replace(deployment, cache=found.cache_kind),
        time=found.engine.time,
        kv_blocks=found.engine.kv_blocks,
        kv_bytes_per_token=found.bytes_per_token,
        scaling=scaling,
        seed=question.seed,
        prefill=None if prefill is None else prefill.engine,
        assumed=_assumed(found, prefill),
    )
    places = [found.place] if prefill is None else [found.place, prefill.place]
    calibration = read_calibration()
    step, first = (
        max(calibration.sigma_of(kind, place) for place in places)
        for kind in ("next_token", "first_token")
    )
    name = class_of("first_token", experts=found.place.experts)
    return setup, Unsure(step=step, first_token=first, crowding=CROWDING.get(name, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hosted:
    """A replica on devices that are named."""

    engine: ReplicaEngine
    devices: str
    cache_kind: str
    bytes_per_token: float
    """Keys and values of one token, on all its devices together."""
    place: Neighbourhood
    assumed: tuple[str, ...]
    """What is assumed of its devices, engine and cache."""


def _assumed(found: _Hosted, prefill: _Hosted | None) -> tuple[str, ...]:
    """What is assumed of a fleet's replicas, once where both kinds are alike."""
    if prefill is None:
        return found.assumed
    alone = [f"for prompts alone: {one}" for one in prefill.assumed if one not in found.assumed]
    return (*found.assumed, *alone)


def _hosted(
    question: SimulationQuestion, deployment: Deployment, model: ModelSpec, gpu: str, tp: int
) -> _Hosted:
    prompt, completion = question.mean_lengths
    replica = replica_of(
        model,
        gpu,
        tp=tp,
        weights=deployment.weights,
        cache=deployment.cache,
        engine=deployment.engine,
        prompt=prompt,
        completion=completion,
    )
    calibration = read_calibration()
    arrays = arrays_of([replica], calibration)
    replica = replace(replica, kept=deployment.kept)
    size = np.array([float(deployment.block_size)])
    fitting = int(sequences_that_fit(arrays.hosted, arrays.rates, size)[0])
    time = EngineTime(
        clock=step_clock(replica, calibration),
        request_seconds=float(arrays.rates.request_seconds[0]),
    )
    blocks = fitting if deployment.kv_blocks is None else deployment.kv_blocks
    per_token = float((cached_bytes(arrays.hosted, np.array([1e4])) / 1e4)[0])
    return _Hosted(
        engine=ReplicaEngine(time=time, kv_blocks=blocks),
        devices=f"{tp} x {gpu}",
        cache_kind=replica.cache_kind,
        bytes_per_token=tp * per_token,
        place=replica.place,
        assumed=tuple(hosting_assumptions(replica)),
    )


def _require_room(found: _Hosted, model: ModelSpec, deployment: Deployment, tokens: float) -> None:
    room = found.engine.kv_blocks * deployment.block_size
    kept = deployment.kept
    if kept is not None:
        tokens = kept.most_blocks(deployment.block_size) * deployment.block_size
    if room < tokens:
        raise InputError(
            f"{model.name} in {deployment.weights} leaves room for {room} tokens on"
            f" {found.devices}, and a request {'has' if kept is None else 'keeps'} {tokens:.0f}:"
            f" raise --tp or take fewer bits{'' if kept is None else ', or a smaller --kv-recent'}"
        )
