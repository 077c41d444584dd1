"""Checkpoint intervals against a search, a simulation of failures, and each other."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cost.checkpoint_interval import (
    cluster_mtbf_seconds,
    daly_first_order_seconds,
    daly_interval_seconds,
    goodput,
    young_interval_seconds,
)


@given(checkpoint=st.floats(0.5, 600), mtbf=st.floats(3600, 1e7), restart=st.floats(0, 1800))
@settings(max_examples=60)
def test_dalys_interval_is_within_a_thousandth_of_the_best(
    checkpoint: float, mtbf: float, restart: float
) -> None:
    chosen = daly_interval_seconds(checkpoint, mtbf)
    best = max(
        goodput(chosen * (0.2 + 0.01 * step), checkpoint, mtbf, restart) for step in range(300)
    )
    assert goodput(chosen, checkpoint, mtbf, restart) >= best * 0.999


@given(checkpoint=st.floats(1, 600), mtbf=st.floats(3600, 1e7))
def test_the_three_rules_agree_while_checkpoints_are_cheap(checkpoint: float, mtbf: float) -> None:
    young = young_interval_seconds(checkpoint, mtbf)
    daly = daly_interval_seconds(checkpoint, mtbf)
    first = daly_first_order_seconds(checkpoint, mtbf)
    assert first <= daly <= young
    if checkpoint < mtbf / 10_000:
        assert daly == pytest.approx(young, rel=0.01)


def test_youngs_rule_wastes_where_checkpoints_are_dear() -> None:
    # A checkpoint of 20 minutes and a failure each hour.
    young = goodput(young_interval_seconds(1200, 3600), 1200, 3600)
    daly = goodput(daly_interval_seconds(1200, 3600), 1200, 3600)
    assert young < 0.98 * daly


def simulated_goodput(
    interval: float, checkpoint: float, mtbf: float, restart: float, seed: int
) -> float:
    """Work until failures that come at random, with restarts that can fail too."""
    draw = random.Random(seed)
    clock = done = 0.0
    fails = draw.expovariate(1 / mtbf)
    ready = 0.0
    for _ in range(20_000):
        end = max(clock, ready) + interval + checkpoint
        if fails >= end:
            clock, done = end, done + interval
            continue
        clock = fails
        fails += draw.expovariate(1 / mtbf)
        ready = clock + restart
    return done / clock


@pytest.mark.parametrize(
    ("checkpoint", "mtbf", "restart"), [(60.0, 11160.0, 300.0), (300.0, 3600.0, 600.0)]
)
def test_goodput_is_that_of_a_simulated_run(checkpoint: float, mtbf: float, restart: float) -> None:
    interval = daly_interval_seconds(checkpoint, mtbf)
    seen = simulated_goodput(interval, checkpoint, mtbf, restart, seed=1)
    assert goodput(interval, checkpoint, mtbf, restart) == pytest.approx(seen, rel=0.03)


def test_a_run_that_fails_faster_than_it_saves_gets_nothing_done() -> None:
    assert goodput(3600.0, 60.0, 1.0) == 0.0
    assert daly_interval_seconds(100.0, 40.0) == 40.0


def test_twice_the_devices_fail_twice_as_often() -> None:
    assert cluster_mtbf_seconds(5e7, 1000) == 5e4
    with pytest.raises(ValueError, match="num_devices must be above 0"):
        cluster_mtbf_seconds(5e7, 0)
