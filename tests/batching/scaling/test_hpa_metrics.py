"""Replicas that one metric asks for, as the reference computes them.

The cases are facts from Kubernetes: the worked examples of its documentation ("Horizontal Pod
Autoscaling", "Algorithm details") and the tables of `replica_calculator_test.go` (release 1.36).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.batching.scaling.hpa import (
    Pods,
    Tolerance,
    replicas_by_average,
    replicas_by_share,
    replicas_by_value,
)

TIGHT = Tolerance(up=0.01)


def pods(*levels: int, missing: int = 0, unready: int = 0) -> Pods:
    return Pods(total=sum(levels), measured=len(levels), missing=missing, unready=unready)


@pytest.mark.parametrize(
    ("level", "expected"),
    [(200, 2), (50, 1), (100, 1), (109, 1), (111, 2)],
    ids=["doubles", "halves", "on target", "within a tenth", "beyond a tenth"],
)
def test_the_documentations_examples_come_out(level: int, expected: int) -> None:
    """Target 100m: at 200m replicas double, at 50m they are halved, within a tenth they stay."""
    for replicas in (1, 2, 10):
        found = replicas_by_average(
            pods(*[level] * replicas), target=100, current=replicas, tolerance=Tolerance()
        )
        doubled = {200: 2 * replicas, 50: -(-replicas // 2), 111: -(-111 * replicas // 100)}
        assert found == doubled.get(level, replicas)
    assert (
        replicas_by_average(pods(level), target=100, current=1, tolerance=Tolerance()) == expected
    )


@pytest.mark.parametrize(
    ("current", "reading", "target", "tolerance", "expected"),
    [
        pytest.param(3, pods(20000, 10000, 30000), 15000, Tolerance(), 4, id="scale up"),
        pytest.param(3, pods(50000, 10000, 30000), 15000, Tolerance(), 6, id="unready counts"),
        pytest.param(3, pods(50000, 15000, 30000), 15000, Tolerance(), 7, id="unready, no down"),
        pytest.param(5, pods(*[12000] * 5), 20000, Tolerance(), 3, id="scale down"),
        pytest.param(3, pods(20000, 21000, 21000), 20000, Tolerance(), 3, id="in tolerance"),
        pytest.param(3, pods(20000, 21000, 21000), 20000, TIGHT, 4, id="out of 1 %"),
        pytest.param(
            5, pods(20000, 19000, 21000, missing=2), 20000, Tolerance(), 5, id="missing, no change"
        ),
        pytest.param(
            2, pods(10000, 10000, missing=1), 17000, Tolerance(), 2, id="rolling update, missing"
        ),
    ],
)
def test_pods_metrics(current, reading, target, tolerance, expected) -> None:
    found = replicas_by_average(reading, target=target, current=current, tolerance=tolerance)
    assert found == expected


@pytest.mark.parametrize(
    ("current", "ready", "total", "target", "tolerance", "expected"),
    [
        pytest.param(3, 3, 20000, 15000, Tolerance(), 4, id="object, up"),
        pytest.param(3, 1, 50000, 10000, Tolerance(), 5, id="object, up, unready ignored"),
        pytest.param(5, 5, 12000, 20000, Tolerance(), 3, id="object, down"),
        pytest.param(3, 3, 20666, 20000, Tolerance(), 3, id="object, in tolerance"),
        pytest.param(3, 3, 20666, 20000, TIGHT, 4, id="object, out of 1 %"),
        pytest.param(3, 1, 8600, 4400, Tolerance(), 2, id="external, down, unready ignored"),
        pytest.param(5, 5, 8600, 14334, Tolerance(), 3, id="external, down"),
        pytest.param(3, 3, 8600, 8888, Tolerance(), 3, id="external, in tolerance"),
        pytest.param(3, 3, 8900, 8800, TIGHT, 4, id="external, out of 1 %"),
        pytest.param(0, 0, 25000, 10000, Tolerance(), 3, id="from zero"),
    ],
)
def test_one_value_for_all(current, ready, total, target, tolerance, expected) -> None:
    found = replicas_by_value(
        total, target=target, current=current, ready=ready, tolerance=tolerance
    )
    assert found == expected


@pytest.mark.parametrize(
    ("current", "total", "target", "tolerance", "expected"),
    [
        pytest.param(3, 8600, 2150, Tolerance(), 4, id="external, up"),
        pytest.param(5, 8600, 2867, Tolerance(), 3, id="external, down"),
        pytest.param(3, 8600, 2900, Tolerance(), 3, id="external, in tolerance"),
        pytest.param(3, 8600, 2800, TIGHT, 4, id="external, out of 1 %"),
        pytest.param(0, 20000, 5000, Tolerance(), 4, id="external, from zero"),
        pytest.param(0, 0, 5000, Tolerance(), 0, id="external, none at zero"),
        pytest.param(3, 20000, 5000, Tolerance(), 4, id="object, up"),
        pytest.param(5, 6000, 2000, Tolerance(), 3, id="object, down"),
        pytest.param(4, 20166, 5000, Tolerance(), 4, id="object, in tolerance"),
        pytest.param(4, 20208, 5000, TIGHT, 5, id="object, out of 1 %"),
    ],
)
def test_one_value_divided_among_the_pods(current, total, target, tolerance, expected) -> None:
    found = replicas_by_share(total, target=target, current=current, tolerance=tolerance)
    assert found == expected


def test_the_tolerance_is_a_closed_interval() -> None:
    """1.1 is within a tenth of 1, though |1 - 1.1| as a double is a little more than 0.1."""
    assert replicas_by_share(1100, target=1000, current=1, tolerance=Tolerance()) == 1
    assert replicas_by_share(900, target=1000, current=1, tolerance=Tolerance()) == 1
    assert replicas_by_share(1101, target=1000, current=1, tolerance=Tolerance()) == 2


def test_no_pod_has_said_anything() -> None:
    found = replicas_by_average(pods(missing=2), target=1, current=2, tolerance=Tolerance())
    assert found is None


@given(
    total=st.integers(0, 10**9),
    measured=st.integers(1, 50),
    missing=st.integers(0, 20),
    unready=st.integers(0, 20),
    target=st.integers(1, 10**6),
)
def test_pods_without_values_never_turn_the_answer_around(
    total, measured, missing, unready, target
) -> None:
    current = measured + missing + unready
    reading = Pods(total=total, measured=measured, missing=missing, unready=unready)
    found = replicas_by_average(reading, target=target, current=current, tolerance=Tolerance())
    assert found is not None
    ratio = total // measured / target
    if ratio > 1.0:
        assert found >= current
    elif ratio < 1.0:
        assert found <= current
