"""Static, dynamic and continuous batching under the same requests, to be looked at side by side.

It is the simulator's own run of one replica (`fleet.py`) with the modes of `batching/policies.py`;
what is kept are the stamps of every request, and where each is at one moment.
"""

from __future__ import annotations

from typing import get_args

import msgspec

from ridgeline.batching.load.stamps import RequestStamps
from ridgeline.batching.load.workload import planned
from ridgeline.batching.policies import Batching
from ridgeline.errors import InputError
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.simulate.deployment import Deployment
from ridgeline.plan.simulate.fleet import Fleet
from ridgeline.plan.simulate.setup import SimulationQuestion, setup_of
from ridgeline.records.batching_playback import (
    BatchingPlayback,
    PlayedBatching,
    PlayedPlaces,
    PlayedRequest,
)
from ridgeline.records.load import Load, check_load
from ridgeline.records.load_test import Percentiles

MOST_REQUESTS = 2000
"""More cannot be followed with the eye."""


def play_batching(
    model: ModelSpec, load: Load, deployment: Deployment, *, moment_share: float = 0.5
) -> BatchingPlayback:
    """Play one load under every way of batching.

    Args:
        model: What is served.
        load: An open loop of a number of requests, with a seed.
        deployment: One replica; how it batches is set here.
        moment_share: The moment to look at, as a share of the time in which requests arrive.

    Raises:
        InputError: A load that is none, too many requests, or a deployment that cannot be.
    """
    check_load(load)
    if load.requests is None or not 1 <= load.requests <= MOST_REQUESTS:
        raise InputError(f"--requests {load.requests}: give 1 to {MOST_REQUESTS:,}")
    if not 0.0 <= moment_share <= 4.0:
        raise InputError(f"--at {moment_share:g}: give a share of the arrivals' time, 0 to 4")
    seed = load.seed or 0
    question = SimulationQuestion(load=load, trace=[], seed=seed, model=model, measured=None)
    runs = {}
    assumed: tuple[str, ...] = ()
    for way in get_args(Batching):
        asked = msgspec.structs.replace(deployment, batching=way)
        setup, _ = setup_of(question, asked, None)
        assumed = setup.assumed
        fleet = Fleet(
            setup=setup,
            requests=planned(load, [], seed),
            concurrency=None,
            seconds=load.sending_seconds,
            prefix_tokens=0,
        )
        runs[way] = fleet.simulate().run.exchanges
    moment = moment_share * max(one.planned for one in runs["continuous"])
    return BatchingPlayback(
        model=model.name,
        gpu=deployment.gpu,
        max_sequences=deployment.max_sequences,
        rate_per_second=load.rate,
        seed=seed,
        moment_seconds=moment,
        ways=[_played(way, exchanges, moment) for way, exchanges in runs.items()],
        assumed=assumed,
    )


def _played(way: str, exchanges: list[RequestStamps], moment: float) -> PlayedBatching:
    in_order = sorted(exchanges, key=lambda one: one.planned)
    ok = [one for one in in_order if one.ok]
    ended = max((one.ended for one in ok), default=0.0)
    tokens = sum(one.output_tokens or 0 for one in ok)
    return PlayedBatching(
        batching=way,
        ttft_seconds=Percentiles.of([one.ttft for one in ok]),
        itl_seconds=Percentiles.of([gap for one in ok for gap in one.gaps() or ()]),
        ended_seconds=ended,
        output_tokens_per_second=tokens / ended if ended else 0.0,
        requests=[_request(one) for one in in_order],
        at_moment=_places(in_order, moment),
    )


def _request(one: RequestStamps) -> PlayedRequest:
    return PlayedRequest(
        arrived_seconds=one.planned,
        begun_seconds=one.begun,
        first_token_seconds=one.chunks[0] if one.chunks else None,
        ended_seconds=one.ended if one.ok else None,
        output_tokens=one.output_tokens or 0,
    )


def _places(exchanges: list[RequestStamps], moment: float) -> PlayedPlaces:
    places: dict[str, list[int]] = {"queue": [], "prefill": [], "decode": [], "done": []}
    for number, one in enumerate(exchanges):
        if one.planned > moment:
            continue
        if one.begun is None or one.begun > moment:
            places["queue"].append(number)
        elif not one.chunks or one.chunks[0] > moment:
            places["prefill"].append(number)
        else:
            places["decode" if one.ended > moment else "done"].append(number)
    return PlayedPlaces(**places)
