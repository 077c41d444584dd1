"""Small fleets with a clock whose times are easy to add up."""

from __future__ import annotations

import math
from typing import Any

from ridgeline.batching.load.workload import Planned
from ridgeline.batching.scaling.settings import Scaling
from ridgeline.cost.serving.clock import StepClock
from ridgeline.plan.simulate.deployment import Deployment, ReplicaEngine, Setup
from ridgeline.plan.simulate.engine_time import EngineTime
from ridgeline.plan.simulate.fleet import Fleet, Simulation

PREFIX_TOKENS = 8


def clock(**seconds: float) -> StepClock:
    """A clock of the given terms; all others are 0."""
    return StepClock(**seconds)


LINEAR = clock(fixed_host_seconds=0.01, token_seconds=0.001, cache_seconds=1e-5, pair_seconds=1e-7)


def simulated(
    requests: list[Planned],
    *,
    kv_blocks: int = 1000,
    scaling: Scaling | None = None,
    concurrency: int | None = None,
    bulk: bool = True,
    named: bool = True,
    paced: bool = False,
    time: EngineTime | None = None,
    kv_bytes: float = 1e6,
    prefill_time: EngineTime | None = None,
    **deployment: Any,
) -> Simulation:
    """Simulate these requests."""
    setup = Setup(
        deployment=Deployment(**{"block_size": 4} | deployment),
        time=time or EngineTime(clock=LINEAR),
        kv_blocks=kv_blocks,
        kv_bytes_per_token=kv_bytes,
        scaling=scaling,
        seed=3,
        prefill=ReplicaEngine(time=prefill_time, kv_blocks=kv_blocks) if prefill_time else None,
        named=named,
        paced=paced,
    )
    return Fleet(
        setup=setup,
        requests=iter(requests),
        concurrency=concurrency,
        seconds=math.inf,
        prefix_tokens=PREFIX_TOKENS,
        bulk=bulk,
    ).simulate()


def request(at: float | None, prompt: int, answer: int, *prefix: int) -> Planned:
    """One request."""
    return Planned(at_seconds=at, input_tokens=prompt, output_tokens=answer, prefix_ids=prefix)
