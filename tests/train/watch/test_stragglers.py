"""The rank that lasts in being slow is named, with its phase; accidents and even ranks are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.train.watch.stragglers import StragglerWatch, suspect

EVEN = {"data": 0.1, "forward": 1.0, "backward": 2.0, "communication": 0.3, "optimizer": 0.2}


def ranks(count: int, noise: list[float] | None = None) -> list[dict[str, float]]:
    noise = noise or [0.0]
    table = []
    for rank in range(count):
        factors = [1 + noise[(rank + place) % len(noise)] for place in range(len(EVEN))]
        table.append({name: EVEN[name] * f for name, f in zip(EVEN, factors, strict=True)})
    return table


@given(
    count=st.integers(2, 32),
    who=st.integers(0, 31),
    phase=st.sampled_from(["data", "forward", "backward", "optimizer"]),
    extra=st.floats(0.5, 20),
    noise=st.lists(st.floats(-0.02, 0.02), min_size=1, max_size=40),
)
def test_a_slow_rank_is_found_through_noise(
    count: int, who: int, phase: str, extra: float, noise: list[float]
) -> None:
    table = ranks(count, noise)
    who %= count
    table[who][phase] += extra
    for rank in range(count):
        # The others wait for it.
        table[rank]["communication"] += 0 if rank == who else extra
    found = suspect(table)
    assert found is not None
    assert (found.rank, found.phase) == (who, phase)
    judge = StragglerWatch()
    assert judge.judge(table) == ""
    assert judge.judge(table).startswith(f"rank {who} is slow in {phase}: ")


@given(count=st.integers(1, 32), noise=st.lists(st.floats(-0.02, 0.02), min_size=1, max_size=40))
def test_even_ranks_are_not_suspected(count: int, noise: list[float]) -> None:
    assert suspect(ranks(count, noise)) is None


@given(waits=st.lists(st.floats(0, 50), min_size=2, max_size=16))
def test_waiting_is_no_fault(waits: list[float]) -> None:
    assert suspect([EVEN | {"communication": wait} for wait in waits]) is None


def test_one_slow_interval_is_an_accident_and_two_in_three_are_not() -> None:
    slow = [*ranks(3), EVEN | {"data": 3.0}]
    judge = StragglerWatch()
    assert [bool(judge.judge(t)) for t in (slow, ranks(4), ranks(4), slow, ranks(4), slow)] == [
        False, False, False, False, False, True,
    ]  # fmt: skip
    other = [EVEN | {"data": 3.0}, *ranks(3)]
    assert judge.judge(other) == ""


def test_stages_of_a_pipeline_are_compared_with_their_replicas() -> None:
    head = EVEN | {"forward": 3.0}
    assert suspect([EVEN, EVEN, EVEN, head]) is not None
    assert suspect([EVEN, EVEN, head, head], peers=[0, 0, 1, 1]) is None
    assert suspect([EVEN, EVEN, EVEN, head], peers=[0, 0, 0, 1]) is None
    found = suspect([EVEN, EVEN, head, head | {"forward": 4.5}], peers=[0, 0, 1, 1])
    assert found is not None
    assert (found.rank, found.phase, found.peers_seconds) == (3, "forward", 3.0)
    assert found.step_share == pytest.approx(1.5 / 6.35)


def test_what_is_said_names_rank_phase_and_cost() -> None:
    slow = [EVEN, EVEN, EVEN | {"data": 0.5}]
    judge = StragglerWatch()
    judge.judge(slow)
    assert judge.judge(slow) == "rank 2 is slow in data: 5.0 times its peers', 11% of a step"
