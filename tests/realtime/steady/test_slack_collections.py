"""Garbage is collected in slack, by what collections recently took, and never lost sight of."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ridgeline.realtime.steady.collector import (
    BACKSTOP_OBJECTS,
    RECENT_SECONDS,
    SLACK,
    SLACK_FACTOR,
    SlackCollector,
)
from ridgeline.records.realtime_run import Collection


class CostlyCollections:
    """A clock that only garbage collections move, each by its cost."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cost = 0.002

    def __call__(self) -> float:
        return self.now

    def collected(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "stop":
            self.now += self.cost


@pytest.fixture
def clock() -> Iterator[CostlyCollections]:
    made = CostlyCollections()
    gc.callbacks.append(made.collected)
    yield made
    gc.callbacks.remove(made.collected)


@pytest.fixture
def collector(
    clock: CostlyCollections, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlackCollector]:
    # To count the millions of objects that all tests' imports left takes seconds.
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 1)
    made = SlackCollector(clock)
    made.begin()
    made.enter("detect")
    made.freeze()
    yield made
    made.undo()


def make_cycles(number: int) -> None:
    for _ in range(number):
        cycle: list[Any] = []
        cycle.append(cycle)


FREEZING = 6
"""Collections of the fixture: three generations, at the start and after the warm-up."""


def later(collector: SlackCollector) -> list[Collection]:
    return collector.collections[FREEZING:]


@pytest.mark.slow
def test_a_collection_waits_for_three_times_what_they_recently_took(
    collector: SlackCollector, clock: CostlyCollections
) -> None:
    make_cycles(900)
    collector.idle(SLACK_FACTOR * clock.cost * 0.99)
    assert not later(collector)
    collector.idle(SLACK_FACTOR * clock.cost * 1.01)
    (one,) = later(collector)
    assert (one.thread, one.generation, one.ended - one.started) == (
        SLACK,
        0,
        pytest.approx(clock.cost),
    )
    assert gc.get_count()[0] < 700


def test_nothing_is_collected_where_little_has_come(collector: SlackCollector) -> None:
    collector.idle(10.0)
    assert not later(collector)


@pytest.mark.slow
def test_more_garbage_than_ever_needs_more_slack(
    collector: SlackCollector, clock: CostlyCollections
) -> None:
    make_cycles(2000)
    collector.idle(1.0)
    assert collector.expected_seconds(0) == pytest.approx(clock.cost, rel=0.01)
    make_cycles(20_000)
    assert collector.expected_seconds(0) == pytest.approx(10 * clock.cost, rel=0.1)


def test_no_slack_collection_was_ever_made_in_less_than_its_due(
    collector: SlackCollector, clock: CostlyCollections
) -> None:
    chance = random.Random(5)
    history: dict[int, list[float]] = {0: [clock.cost], 1: [clock.cost], 2: [clock.cost]}
    made = 0
    for _ in range(400):
        make_cycles(chance.randrange(1500))
        clock.cost = chance.choice([0.001, 0.002, 0.008])
        slack = chance.uniform(0.0, 0.05)
        before = len(collector.collections)
        collector.idle(slack)
        for one in collector.collections[before:]:
            recent = history[one.generation][-100:]
            assert slack >= SLACK_FACTOR * float(np.quantile(recent, 0.99)) * (1 - 1e-9)
            history[one.generation].append(one.ended - one.started)
            made += 1
    assert made > 30
    assert {one.generation for one in later(collector)} >= {0, 1}


@pytest.mark.slow
def test_one_that_was_interrupted_does_not_forbid_the_next_for_ever(
    collector: SlackCollector, clock: CostlyCollections
) -> None:
    for cost in (0.002, 0.002, 5.0):
        clock.cost = cost
        make_cycles(900)
        collector.idle(1.0)
    clock.cost = 0.002
    make_cycles(900)
    collector.idle(0.03)
    assert len(later(collector)) == 3
    assert "1 times one was due" in collector.measure.detail
    clock.now += RECENT_SECONDS + 1.0
    collector.idle(0.03)
    assert len(later(collector)) == 4


def test_stages_are_not_interrupted_until_the_backstop_which_says_who_paid(
    collector: SlackCollector,
) -> None:
    make_cycles(BACKSTOP_OBJECTS // 2)
    assert not later(collector)
    assert collector.measure.granted
    make_cycles(BACKSTOP_OBJECTS)
    assert {one.thread for one in later(collector)} == {"detect"}
    assert not collector.measure.granted
    assert "in mid-frame" in collector.measure.detail


@pytest.mark.slow
def test_what_others_froze_and_set_is_theirs_again(clock: CostlyCollections) -> None:
    thresholds, callbacks, frozen = gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count()
    collector = SlackCollector(clock)
    collector.begin()
    assert gc.get_threshold() != thresholds
    collector.undo()
    collector.undo()
    assert (gc.get_threshold(), gc.callbacks) == (thresholds, callbacks)
    assert (gc.get_freeze_count() > 0) == (frozen > 0)
