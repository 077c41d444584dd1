"""Steps that are done many at a time leave what the steps would have left."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.simulate.fleets import LINEAR, PREFIX_TOKENS, request, simulated

from ridgeline.batching.load.workload import Planned
from ridgeline.batching.scaling.settings import Scaling
from ridgeline.plan.simulate.engine_time import EngineTime
from ridgeline.plan.simulate.fleet import Simulation

gaps = st.sampled_from([0.0, 0.0, 0.003, 0.05, 0.4, 3.0])


@st.composite
def loads(draw: st.DrawFn) -> list[Planned]:
    found, now = [], 0.0
    for _ in range(draw(st.integers(1, 14))):
        now += draw(gaps)
        prompt = draw(st.integers(1, 40))
        shared = draw(st.integers(0, 3)) if draw(st.booleans()) else 0
        prefix = tuple(draw(st.integers(1, 2)) for _ in range(min(shared, prompt // PREFIX_TOKENS)))
        found.append(request(now, prompt, draw(st.integers(1, 40)), *prefix))
    return found


def as_seen(found: Simulation) -> list[tuple[Any, ...]]:
    return [
        (one.planned, tuple(one.chunks), one.ended, one.cached_tokens, one.output_tokens, one.error)
        for one in found.run.exchanges
    ]


deployments = st.fixed_dictionaries(
    {
        "kv_blocks": st.sampled_from([21, 30, 45, 400]),
        "max_sequences": st.sampled_from([1, 2, 4, 256]),
        "max_tokens_per_step": st.sampled_from([5, 16, 2048]),
        "max_waiting": st.sampled_from([2, 1024]),
        "order": st.sampled_from(["fcfs", "priority", "shortest-prompt", "longest-prefix"]),
        "prefix_cache": st.booleans(),
    }
)


@settings(max_examples=150)
@given(loads(), deployments, st.sampled_from([0.0, 0.002]), st.booleans())
def test_many_steps_at_once_are_the_same_steps(
    load: list[Planned], deployment: dict[str, Any], between: float, paced: bool
) -> None:
    time = EngineTime(clock=LINEAR, between_seconds=between, request_seconds=between)
    one, other = (
        simulated(load, time=time, bulk=bulk, paced=paced, **deployment) for bulk in (True, False)
    )
    assert as_seen(one) == as_seen(other)
    assert (one.steps, one.preemptions) == (other.steps, other.preemptions)


@settings(max_examples=60)
@given(
    loads(),
    st.sampled_from(
        [
            {"replicas": 2, "router": "round-robin"},
            {"replicas": 3},
            {"replicas": 2, "router": "least-open"},
            {"replicas": 3, "prefill_replicas": 1},
            {"scaling": Scaling(maximum=3, open_per_replica=2.0), "startup_seconds": 0.5},
            {"concurrency": 3, "replicas": 2},
            {"concurrency": 4},
        ]
    ),
)
def test_replicas_that_run_ahead_miss_nobody(
    load: list[Planned], deployment: dict[str, Any]
) -> None:
    one, other = (simulated(load, kv_blocks=60, bulk=bulk, **deployment) for bulk in (True, False))
    assert as_seen(one) == as_seen(other)
    assert one.replicas == other.replicas


@settings(max_examples=60)
@given(loads(), deployments)
def test_names_of_blocks_matter_only_where_something_is_shared_or_preempted(
    load: list[Planned], deployment: dict[str, Any]
) -> None:
    alone = [request(one.at_seconds, one.input_tokens, one.output_tokens) for one in load]
    without = simulated(alone, named=False, **deployment)
    if not without.preemptions:
        assert as_seen(without) == as_seen(simulated(alone, **deployment))
