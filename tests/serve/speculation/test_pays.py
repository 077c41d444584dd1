"""Drafts go on while the clock says that they pay."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.serve.speculation.pays import FIRST_PAUSE_SECONDS, PLAIN_EVERY, Pays


class Machine:
    """Steps take as long as they are said to."""

    def __init__(self, pays: Pays) -> None:
        self.pays = pays
        self.now = 0.0
        self.drafted = 0
        self.plain = 0

    def run(
        self, steps: int, *, plain: float = 0.010, drafted: float, tokens: int = 3, size: int = 1
    ) -> None:
        for _ in range(steps):
            drafts = self.pays.wants(size, self.now)
            seconds = drafted if drafts else plain
            self.now += seconds
            self.drafted += drafts
            self.plain += not drafts
            self.pays.record(
                size,
                seconds=seconds,
                tokens=size * (tokens if drafts else 1),
                drafted=drafts,
                now=self.now,
            )


def test_drafts_that_pay_stay_and_plain_steps_are_measured_now_and_then() -> None:
    machine = Machine(Pays())
    machine.run(1000, drafted=0.015)
    assert machine.pays.speculating
    assert machine.pays.speedup(1) == pytest.approx(2.0, rel=0.01)
    assert 0.9 < machine.drafted / 1000 < 1.0
    assert machine.plain >= 900 // PLAIN_EVERY


def test_drafts_that_cost_end_and_are_tried_again_after_longer_and_longer() -> None:
    machine = Machine(Pays())
    machine.run(100, drafted=0.050)
    assert not machine.pays.speculating
    assert machine.drafted < 20
    tries = []
    for _ in range(40_000):
        before = machine.drafted
        machine.run(1, drafted=0.050)
        if machine.drafted > before and (not tries or machine.now - tries[-1] > 1.0):
            tries.append(machine.now)
    gaps = [b - a for a, b in pairwise(tries)]
    assert gaps[0] == pytest.approx(2 * FIRST_PAUSE_SECONDS, rel=0.1)
    assert gaps == sorted(gaps)
    assert machine.drafted < 100


def test_drafts_come_back_when_they_pay_again() -> None:
    machine = Machine(Pays())
    machine.run(100, drafted=0.050)
    machine.run(5000, drafted=0.012)
    assert machine.pays.speculating


def test_drafts_end_when_acceptance_falls() -> None:
    machine = Machine(Pays())
    machine.run(300, drafted=0.015)
    assert machine.pays.speculating
    machine.run(300, drafted=0.015, tokens=1)
    assert not machine.pays.speculating


def test_large_batches_are_judged_apart_from_small_ones() -> None:
    machine = Machine(Pays())
    machine.run(100, drafted=0.015, size=1)
    machine.run(100, drafted=0.060, size=64)
    assert not machine.pays.speculating
    assert machine.pays.wants(1, machine.now)


def test_always_means_always() -> None:
    machine = Machine(Pays(always=True))
    machine.run(100, drafted=1.0)
    assert machine.drafted == 100
    assert machine.pays.speculating


@settings(max_examples=30, deadline=None)
@given(st.floats(0.005, 0.06), st.integers(1, 5))
def test_in_the_long_run_no_more_than_a_little_is_lost(drafted: float, tokens: int) -> None:
    machine = Machine(Pays())
    machine.run(4000, drafted=drafted, tokens=tokens)
    made = machine.drafted * tokens + machine.plain
    best = min(0.010, drafted / tokens)
    assert machine.now / made < 1.15 * best
