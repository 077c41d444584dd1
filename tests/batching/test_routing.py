"""Which replica gets a request: the decision alone, without engines."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.batching.routing import ReplicaLoad, Routes, cost

BLOCK = 4
prompts = st.lists(st.integers(0, 3), min_size=1, max_size=40).map(tuple)
loads = st.builds(
    ReplicaLoad,
    open=st.integers(0, 50),
    pending_tokens=st.integers(0, 5000),
    cache_usage=st.floats(0, 1),
    adapters=st.sampled_from([(), ("a",), ("a", "b")]),
)
some_loads = st.lists(st.none() | loads, min_size=1, max_size=5)


def routes(replicas: int, most_blocks: int = 1000, expiry_seconds: float = 100.0) -> Routes:
    return Routes([most_blocks] * replicas, block_size=BLOCK, expiry_seconds=expiry_seconds)


def filled(replicas: int, sent: list[tuple[int, ...]]) -> Routes:
    out = routes(replicas)
    for index, prompt in enumerate(sent):
        out.remember(index % replicas, prompt, "", float(index) / 100)
    return out


@given(prompts, some_loads, st.lists(prompts, max_size=8))
def test_only_replicas_that_take_requests_get_them(prompt, current, sent) -> None:
    choice = filled(len(current), sent).choose(prompt, "", current, 1.0)
    if all(load is None for load in current):
        assert choice is None
    else:
        assert choice is not None
        assert current[choice.replica] is not None
        assert 1 <= choice.uncached_tokens <= len(prompt)


@given(prompts, some_loads, st.lists(prompts, max_size=8))
def test_load_is_piled_up_only_as_far_as_it_saves_computation(prompt, current, sent) -> None:
    table = filled(len(current), sent)
    choice = table.choose(prompt, "", current, 1.0)
    if choice is None:
        return
    load = current[choice.replica]
    assert load is not None
    for other in range(len(current)):
        alone = [one if index == other else None for index, one in enumerate(current)]
        rival = table.choose(prompt, "", alone, 1.0)
        rival_load = current[other]
        if rival is not None and rival_load is not None:
            saved = rival.uncached_tokens - choice.uncached_tokens
            assert cost(load, "") - cost(rival_load, "") <= saved + 1e-6


@given(st.lists(prompts, max_size=20), prompts)
def test_what_was_computed_there_is_not_computed_again(sent, prompt) -> None:
    table = routes(1)
    for one in sent:
        table.remember(0, one, "", 0.0)
    choice = table.choose(prompt, "", [ReplicaLoad()], 1.0)
    assert choice is not None
    shared = max((_common_blocks(one, prompt) for one in sent), default=0) * BLOCK
    assert choice.uncached_tokens == max(1, len(prompt) - shared)


def _common_blocks(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    blocks = 0
    while (blocks + 1) * BLOCK <= min(len(one), len(other)) and one[
        : (blocks + 1) * BLOCK
    ] == other[: (blocks + 1) * BLOCK]:
        blocks += 1
    return blocks


def test_equal_replicas_take_turns() -> None:
    table, got = routes(3), []
    for index in range(9):
        prompt = (index,) * 8
        choice = table.choose(prompt, "", [ReplicaLoad()] * 3, float(index))
        assert choice is not None
        table.remember(choice.replica, prompt, "", float(index))
        got.append(choice.replica)
    assert got == [0, 1, 2] * 3


def test_a_shared_prefix_stays_together_until_the_load_outweighs_it() -> None:
    table, prefix = routes(2), tuple(range(400))
    table.remember(1, prefix, "", 0.0)

    def choose(open_there: int) -> int:
        choice = table.choose(
            (*prefix, 7, 8), "", [ReplicaLoad(), ReplicaLoad(open=open_there)], 1.0
        )
        assert choice is not None
        return choice.replica

    assert choose(open_there=2) == 1
    assert choose(open_there=40) == 0


def test_adapters_share_no_prefix_and_draw_requests_to_where_they_are() -> None:
    table, prompt = routes(2), tuple(range(64))
    table.remember(0, prompt, "sql", 0.0)
    plain = table.choose(prompt, "", [ReplicaLoad(), ReplicaLoad()], 1.0)
    assert plain is not None
    assert plain.uncached_tokens == 64
    there = table.choose((9,) * 64, "sql", [ReplicaLoad(), ReplicaLoad(adapters=("sql",))], 1.0)
    assert there is not None
    assert there.replica == 1


def test_a_full_cache_turns_requests_away() -> None:
    current = [ReplicaLoad(cache_usage=1.0), ReplicaLoad(open=20)]
    choice = routes(2).choose((1, 2, 3), "", current, 0.0)
    assert choice is not None
    assert choice.replica == 1


def test_a_prefix_expires_and_comes_alive_by_use() -> None:
    table, prompt = routes(1, expiry_seconds=10.0), tuple(range(8))

    def uncached(now: float) -> int:
        choice = table.choose(prompt, "", [ReplicaLoad()], now)
        assert choice is not None
        return choice.uncached_tokens

    table.remember(0, prompt, "", 0.0)
    assert uncached(9.0) == 1
    table.remember(0, prompt, "", 9.0)
    assert uncached(18.0) == 1
    assert uncached(20.0) == 8


def test_no_more_is_remembered_than_the_cache_holds_and_nothing_after_a_restart() -> None:
    table = routes(1, most_blocks=5)
    for _ in range(100):
        table.remember(0, [random.randrange(9) for _ in range(30)], "", 0.0)
    assert len(table._seen[0].at) == 5
    table.restart(0, 7)
    assert not table._seen[0].at
    for _ in range(10):
        table.remember(0, [random.randrange(9) for _ in range(30)], "", 0.0)
    assert len(table._seen[0].at) == 7
