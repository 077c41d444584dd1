"""Whatever happens in whatever order: right tokens, no block lost, no deadlock."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.batching.workload import SeveralAtOnce, Workload

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.policies import Limits
from ridgeline.batching.scheduler import Scheduler

ORDERS = ("fcfs", "priority", "shortest-prompt", "longest-prefix")
MODES = ("continuous", "static", "dynamic")
LAYOUTS = ("paged", "contiguous", "dynamic")


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    num_blocks = draw(st.integers(64 // block_size, 240 // block_size))
    chunked = draw(st.booleans())
    budget = draw(st.integers(3, 64)) if chunked else 96
    layout = draw(st.sampled_from(LAYOUTS))
    limits = Limits(
        max_tokens_per_step=budget,
        max_sequences=draw(st.integers(1, 12)),
        max_length=64,
        max_waiting=16,
        batching=draw(st.sampled_from(MODES)),
        order=draw(st.sampled_from(ORDERS)),
        chunked_prefill=chunked,
    )
    cache = BlockCache(
        num_blocks, block_size, layout=layout, prefix=draw(st.booleans()), max_length=64
    )
    random = draw(st.randoms(use_true_random=False))
    return Workload(Scheduler(limits, cache), random)


@settings(max_examples=150, deadline=None)
@given(workloads(), st.integers(1, 120))
def test_every_answer_is_the_one_given_alone(workload: Workload, events: int) -> None:
    for _ in range(events):
        workload.event()
        workload.scheduler.check()
    workload.drain()
    workload.check()


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_small_cache_under_load_preempts_and_stays_right(layout: str, order: str) -> None:
    limits = Limits(max_tokens_per_step=24, max_sequences=8, max_length=64, order=order)
    cache = BlockCache(32, 4, layout=layout, max_length=64)
    workload = Workload(Scheduler(limits, cache), Random(3))
    for _ in range(1500):
        workload.event()
    workload.drain()
    workload.check()
    counters = workload.scheduler.counters
    assert counters.preemptions > 0 or layout == "contiguous"
    assert counters.accepted_tokens > 0


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("layout", ["paged", "dynamic"])
def test_several_steps_under_way_give_the_same_and_share_the_work(layout: str, stages: int) -> None:
    limits = Limits(max_tokens_per_step=24, max_sequences=8, max_length=64)
    cache = BlockCache(32, 4, layout=layout, max_length=64)
    workload = SeveralAtOnce(Scheduler(limits, cache), Random(stages), stages=stages)
    for count in range(600):
        workload.event()
        if count % 20 == 0:
            workload.scheduler.check()
    workload.drain()
    workload.check()
    counters = workload.scheduler.counters
    assert counters.preemptions > 0
    assert counters.prefix_hits > 0 or layout != "paged"


@pytest.mark.slow
def test_no_block_is_leaked_in_a_hundred_thousand_events() -> None:
    limits = Limits(max_tokens_per_step=48, max_sequences=16, max_length=64, max_waiting=32)
    workload = Workload(Scheduler(limits, BlockCache(64, 4)), Random(7), drafting=False)
    for count in range(100_000):
        workload.event()
        if count % 1000 == 0:
            workload.scheduler.check()
    workload.drain()
    workload.check()
    counters = workload.scheduler.counters
    assert sum(counters.finished.values()) == len(workload.all)
    assert counters.preemptions > 50
    assert counters.prefix_hits > 1000
