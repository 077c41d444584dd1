"""Who goes first under each order, and when each mode lets anyone in."""

from __future__ import annotations

from typing import get_args

import pytest
from tests.batching.fake_model import FakeModel
from tests.batching.test_scheduler import added, scheduler_of, sequence_of

from ridgeline.batching.policies import ORDERS, Batching, Limits, Order, mode, ordering


def test_every_order_and_every_mode_has_a_file() -> None:
    assert set(ORDERS) == set(get_args(Order))
    for name in get_args(Batching):
        assert mode(Limits(batching=name), 4).seats(4, [], 0.0) == 0


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="there are fcfs, priority, shortest-prompt"):
        ordering("lifo")
    with pytest.raises(ValueError, match="there are continuous, static, dynamic"):
        mode(Limits(batching="none"), 4)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("fcfs", [9, 5, 7, 13]),
        ("priority", [7, 9, 5, 13]),
        ("shortest-prompt", [5, 7, 9, 13]),
        ("longest-prefix", [13, 9, 5, 7]),
    ],
)
def test_the_queue_is_served_in_order(order: Order, expected: list[int]) -> None:
    scheduler = scheduler_of(order=order, max_sequences=1)
    model = added(scheduler, sequence_of(16, 1, first=3))
    model.run()
    nine, five = sequence_of(9, 1), sequence_of(5, 1, first=1)
    seven, thirteen = sequence_of(7, 1, first=2, priority=-1), sequence_of(13, 1, first=3)
    for one in (nine, five, seven, thirteen):
        scheduler.add(one, 0.0)
    served = []
    while scheduler.has_work:
        served += [len(one.sequence.request.prompt) for one in model.run().slices]
    assert served == expected


def test_a_head_that_does_not_fit_is_not_overtaken() -> None:
    scheduler = scheduler_of(8, prefix=False)
    big = sequence_of(20, 4)
    model = added(scheduler, sequence_of(16, 3), big, sequence_of(3, 4))
    while not big.num_computed:
        assert len(scheduler.running) <= 1
        model.run()
    assert scheduler.waiting == [] or len(scheduler.waiting) == 1


def test_a_static_batch_lets_nobody_in_until_all_of_it_has_ended() -> None:
    scheduler = scheduler_of(batching="static", max_sequences=2)
    late = sequence_of(5, 1)
    model = added(scheduler, sequence_of(6, 2), sequence_of(7, 6), late)
    for _ in range(6):
        assert late not in [one.sequence for one in model.run().slices]
    assert late in [one.sequence for one in model.run().slices]


def test_a_dynamic_batch_starts_when_it_is_full_or_old() -> None:
    scheduler = scheduler_of(batching="dynamic", max_sequences=2, dynamic_delay_seconds=0.5)
    model: FakeModel = added(scheduler, sequence_of(6, 1))
    assert not model.run(0.4).slices
    assert scheduler.starts_at == 0.5
    assert len(model.run(0.5).slices) == 1
    scheduler.add(sequence_of(6, 1), 1.0)
    scheduler.add(sequence_of(7, 1), 1.0)
    assert len(model.run(1.0).slices) == 2
