"""Times that can be added up by hand, and what a fleet may never lose."""

from __future__ import annotations

import pytest
from tests.plan.simulate.fleets import LINEAR, clock, request, simulated

from ridgeline.batching.scaling.settings import Scaling
from ridgeline.plan.simulate.engine_time import EngineTime

STEADY = EngineTime(clock=clock(fixed_host_seconds=0.01))
"""Every step takes 10 ms."""


def test_a_lone_request_takes_its_steps() -> None:
    found = simulated([request(1.0, 10, 5)], time=STEADY)
    (one,) = found.run.exchanges
    assert one.chunks == pytest.approx([1.01, 1.02, 1.03, 1.04, 1.05])
    assert (one.prompt_tokens, one.output_tokens) == (10, 5)
    assert found.steps == 5


def test_who_comes_during_a_step_waits_for_the_next() -> None:
    found = simulated([request(0.0, 10, 9), request(0.015, 10, 2)], time=STEADY)
    assert found.run.exchanges[1].chunks == pytest.approx([0.03, 0.04])


def test_what_surrounds_the_engine_is_added_once() -> None:
    time = EngineTime(clock=STEADY.clock, request_seconds=0.1, between_seconds=0.002)
    (one,) = simulated([request(0.0, 10, 3)], time=time).run.exchanges
    assert one.chunks == pytest.approx([0.11, 0.122, 0.134])


def test_a_shared_beginning_is_computed_once() -> None:
    time = EngineTime(clock=clock(token_seconds=0.001))
    load = [request(0.0, 24, 1, 1, 2, 3), request(1.0, 24, 1, 1, 2, 9)]
    first, second = simulated(load, time=time).run.exchanges
    assert (first.cached_tokens, second.cached_tokens) == (0, 16)
    assert second.ttft == pytest.approx(first.ttft / 3)
    cold = simulated(load, time=time, prefix_cache=False).run.exchanges[1]
    assert cold.ttft == pytest.approx(first.ttft)


def test_equal_ids_after_other_beginnings_are_other_blocks() -> None:
    load = [request(0.0, 24, 1, 1, 2, 3), request(1.0, 24, 1, 7, 2, 3)]
    assert simulated(load).run.exchanges[1].cached_tokens == 0


def test_a_closed_loop_sends_when_it_was_answered() -> None:
    load = [request(None, 10, 2)] * 5
    found = simulated(load, time=STEADY, concurrency=1)
    assert [one.planned for one in found.run.exchanges] == pytest.approx(
        [0.0, 0.02, 0.04, 0.06, 0.08]
    )


def test_a_full_queue_refuses() -> None:
    load = [request(0.0, 10, 5)] * 8
    found = simulated(load, max_sequences=1, max_waiting=3)
    errors = [one.error for one in found.run.exchanges if one.error]
    assert len(errors) == 4, "one runs and three wait"
    assert all(error.startswith("status 429") for error in errors)


def test_all_drafts_accepted_are_steps_saved() -> None:
    load = [request(0.0, 10, 41)]
    plain = simulated(load, time=STEADY)
    found = simulated(load, time=STEADY, drafts=4, acceptance=1.0, draft_cost=0.0)
    assert plain.steps == 41
    assert found.steps == 9
    assert found.run.exchanges[0].output_tokens == 41
    dear = simulated(load, time=STEADY, drafts=4, acceptance=1.0, draft_cost=0.25)
    decode = [
        after - before
        for before, after in zip(*[dear.run.exchanges[0].chunks[i:] for i in (0, 1)], strict=False)
    ]
    assert decode[0] == pytest.approx(0.02), "four drafts of a quarter of a step each"


def test_a_prompt_is_handed_over_with_its_keys_and_values() -> None:
    load = [request(0.0, 100, 3), request(0.001, 100, 3)]
    found = simulated(
        load,
        time=STEADY,
        replicas=2,
        prefill_replicas=1,
        kv_bytes=1e6,
        link_gigabytes_per_second=1.0,
    )
    first, second = found.run.exchanges
    # 101 tokens of 1 MB at 1 GB/s, then two steps elsewhere.
    assert first.chunks == pytest.approx([0.01, 0.01 + 0.101 + 0.01, 0.01 + 0.101 + 0.02])
    assert second.chunks[0] == pytest.approx(0.02)
    assert second.output_tokens == 3


def test_prompts_are_computed_by_an_engine_of_their_own() -> None:
    load = [request(0.0, 100, 3), request(0.001, 100, 3)]
    quick = EngineTime(clock=clock(fixed_host_seconds=0.002))
    found = simulated(
        load, time=STEADY, prefill_time=quick, replicas=2, prefill_replicas=1, kv_bytes=0.0
    )
    first, second = found.run.exchanges
    assert first.chunks == pytest.approx([0.002, 0.012, 0.022])
    assert second.chunks[0] == pytest.approx(0.004)


def test_replicas_come_after_their_start_up_and_go_when_drained() -> None:
    burst = [request(0.1, 10, 200)] * 12
    late = [request(60.0 + number, 10, 2) for number in range(30)]
    scaling = Scaling(maximum=3, open_per_replica=4.0, down_window_seconds=5.0)
    found = simulated(burst + late, time=STEADY, scaling=scaling, startup_seconds=2.0)
    assert all(one.ok for one in found.run.exchanges)
    assert found.most_replicas == 3
    counts = [count for _, count in found.replicas]
    assert counts[:3] == [1, 2, 3]
    assert counts[-2] == 1, "back to one before the end"
    spent = sum(
        (after[0] - before[0]) * before[1]
        for before, after in zip(found.replicas, found.replicas[1:], strict=False)
    )
    assert found.replica_seconds == pytest.approx(spent)
    slow = simulated(burst + late, time=STEADY, scaling=scaling, startup_seconds=1e3)
    assert all(one.ok for one in slow.run.exchanges)


def test_a_misses_policy_sees_late_tokens() -> None:
    load = [request(number * 0.05, 200, 20) for number in range(1200)]
    time = EngineTime(clock=LINEAR)
    scaling = Scaling(maximum=4, on="slo", ttft_seconds=0.5, itl_seconds=0.3)
    found = simulated(load, time=time, scaling=scaling, startup_seconds=1.0)
    alone = simulated(load, time=time)
    assert found.most_replicas > 1
    assert found.run.exchanges[-1].ttft < alone.run.exchanges[-1].ttft / 4
