"""Rates and windows of the horizontal autoscaler, as the reference computes them.

The cases are facts from Kubernetes: `horizontal_test.go` (release 1.36), `TestScalingWithRules`,
`TestNormalizeDesiredReplicas` and `TestNormalizeDesiredReplicasWithBehavior`.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.batching.scaling.hpa_behaviour import (
    DOWN,
    UP,
    Behaviour,
    History,
    Rate,
    Rules,
    limited,
    limited_plainly,
    stabilised,
    stabilised_plainly,
)

NOW = 10_000.0


def rules(pods=0, pods_period=0, percent=0, percent_period=0, window=0) -> Rules:
    rates = []
    if pods:
        rates.append(Rate("Pods", pods, pods_period))
    if percent:
        rates.append(Rate("Percent", percent, percent_period))
    return Rules(rates=tuple(rates), window_seconds=window)


def spread(changes: list[int], period: float) -> list[tuple[float, int]]:
    """Changes in the middles of equal parts of the last `period` seconds."""
    part = period / len(changes)
    return [(NOW - period + part * (i + 0.5), change) for i, change in enumerate(changes)]


CASES = [
    # current, wanted, minimum, maximum, up, down, added, removed, expected
    (5, 7, 3, 8, UP, DOWN, [], [], 7),
    (3, 1, 2, 8, UP, DOWN, [], [], 2),
    (1, 0, 0, 10, UP, DOWN, [], [], 0),
    (20, 1000, 1, 10, UP, DOWN, [], [], 10),
    (100, 1000, 100, 150, UP, DOWN, [], [], 150),
    (3, 1000, 1, 2000, rules(0, 0, 1, 60), DOWN, [], [], 4),
    (10, 50, 1, 1000, UP, DOWN, [], [], 20),
    (10, 500, 1, 1000, rules(100, 60, 100, 60), DOWN, [], [], 110),
    (10, 500, 1, 1000, rules(2, 60, 100, 60), DOWN, [], [], 20),
    (10, 50, 1, 1000, rules(100, 60), DOWN, [], [], 50),
    (10, 50, 1, 1000, rules(10000, 60), DOWN, [], [], 50),
    (10, 50, 1, 1000, rules(30, 60), DOWN, [], [], 40),
    (10, 50, 1, 1000, rules(0, 0, 200, 60), DOWN, [], [], 30),
    (100, 2, 1, 1000, UP, rules(20, 60, 1, 60, 300), [], [], 80),
    (100, 2, 1, 1000, UP, rules(2, 60, 1, 60, 300), [], [], 98),
    (10, 0, 1, 1000, UP, rules(100, 60, window=300), [], [], 1),
    (10, 2, 5, 1000, UP, rules(0, 0, 100, 60, 300), [], [], 5),
    (10, 2, 1, 1000, UP, rules(5, 60, window=300), [], [], 5),
    (10, 5, 1, 1000, UP, rules(0, 0, 50, 60, 300), [], [], 5),
    (100, 500, 1, 200, rules(300, 60), DOWN, [1, 5, 9], [], 200),
    (100, 500, 1, 200, rules(0, 0, 10000, 60), DOWN, [1, 5, 9], [], 200),
    (100, 500, 1, 1000, rules(5, 120), DOWN, [1, 5, 9], [], 100),
    (100, 500, 1, 1000, rules(150, 120), DOWN, [1, 5, 9], [], 235),
    (100, 500, 1, 1000, rules(0, 0, 200, 120), DOWN, [1, 5, 9], [], 255),
    (6, 24, 1, 1000, rules(0, 0, 300, 300), DOWN, [4], [2], 16),
    (10, 5, 1, 1000, UP, DOWN, [], [1, 5, 9], 5),
    (100, 0, 1, 1000, UP, rules(115, 120, window=300), [], [1, 5, 9], 1),
    (100, 0, 5, 1000, UP, rules(130, 120, window=300), [], [1, 5, 9], 5),
    (100, 2, 5, 1000, UP, rules(0, 0, 100, 120, 300), [], [1, 5, 9], 5),
    (100, 2, 1, 1000, UP, rules(5, 120, window=300), [], [1, 5, 9], 100),
    (100, 0, 1, 1000, UP, rules(0, 0, 50, 120, 300), [], [2, 4, 6], 56),
    (10, 1, 1, 1000, UP, rules(0, 0, 50, 180), [2], [4], 6),
    (100, 0, 1, 1000, UP, rules(0, 0, 10, 120, 300), [], [10, 10, 10], 100),
    (10, 5, 1, 1000, UP, rules(0, 0, 1000, 120, 300), [], [10, 10, 10], 5),
    (100, 200, 1, 1000, rules(1000, 60), DOWN, [8, 12, 9, 11], [], 200),
    (100, 200, 1, 1000, rules(1000, 30, 100, 60), DOWN, [8, 12, 9, 11], [], 200),
    (100, 5, 1, 1000, UP, rules(1000, 60, window=300), [], [8, 12, 9, 11], 5),
    (100, 5, 1, 1000, UP, rules(1000, 30, 100, 60, 300), [], [8, 12, 9, 11], 5),
    (3, 1000, 1, 100, rules(0, 0, 700, 60), DOWN, [], [], 24),
    (3, 1000, 1, 20, rules(0, 0, 700, 60), DOWN, [], [], 20),
]


@pytest.mark.parametrize("case", CASES)
def test_rates_allow_what_the_reference_allows(case) -> None:
    current, wanted, minimum, maximum, up, down, added, removed, expected = case
    history = History(
        added=spread(added, 120) if added else [], removed=spread(removed, 120) if removed else []
    )
    found = limited(
        history,
        Behaviour(up=up, down=down),
        bounds=(minimum, maximum),
        current=current,
        wanted=wanted,
        now=NOW,
    )
    assert found == expected


def test_the_least_rate_holds_where_min_is_selected_and_none_where_disabled() -> None:
    pair = (Rate("Pods", 2, 60), Rate("Percent", 50, 60))
    least = Rules(rates=pair, select="Min", window_seconds=300)
    off = Rules(rates=pair, select="Disabled", window_seconds=300)

    def go(behaviour: Behaviour, current: int, wanted: int) -> int:
        return limited(
            History(), behaviour, bounds=(0, 100), current=current, wanted=wanted, now=NOW
        )

    assert go(Behaviour(up=least, down=least), 1, 50) == 2
    assert go(Behaviour(up=least, down=least), 5, 0) == 3
    assert go(Behaviour(up=off, down=off), 5, 50) == 5
    assert go(Behaviour(up=off, down=off), 5, 0) == 5


MINUTE = 60.0
WINDOWS = [
    # answers (replicas, minutes ago), current, wanted, up window, down window, expected
    ([], 100, 5, 0, 0, 5),
    ([(4, 2), (5, 1)], 100, 3, 0, 180, 5),
    ([(4, 2), (5, 1)], 1, 7, 300, 0, 4),
    ([(1, 2), (2, 1)], 100, 3, 300, 0, 3),
    ([(4, 2), (5, 1)], 1, 3, 0, 300, 3),
    ([(10, 10), (9, 9)], 100, 3, 0, 0, 3),
    ([(10, 10), (9, 9)], 1, 100, 0, 0, 100),
    ([(10, 10), (4, 1), (5, 2), (9, 9)], 100, 3, 0, 180, 5),
    ([(10, 100), (6, 1), (5, 2), (9, 3)], 1, 100, 300, 0, 5),
    ([(2, 100), (3, 3)], 2, 1, 300, 300, 2),
    ([(2, 100), (1, 3)], 2, 3, 300, 300, 2),
]


@pytest.mark.parametrize("case", WINDOWS)
def test_windows_pick_the_recent_answer_that_changes_least(case) -> None:
    answers, current, wanted, up, down, expected = case
    history = History(answers=[(NOW - ago * MINUTE, count) for count, ago in answers])
    behaviour = Behaviour(up=rules(1, 1, window=up), down=rules(1, 1, window=down))
    found = stabilised(history, behaviour, current=current, wanted=wanted, now=NOW)
    assert found == expected
    assert history.answers[-1] == (NOW, wanted)


@pytest.mark.parametrize(
    ("answers", "wanted", "expected"),
    [
        ([], 5, 5),
        ([(4, 2), (5, 1)], 3, 5),
        ([(1, 2), (2, 1)], 3, 3),
        ([(10, 10), (9, 9)], 3, 3),
        ([(10, 10), (4, 1), (5, 2), (9, 9)], 3, 5),
    ],
)
def test_without_behaviour_only_the_way_down_waits(answers, wanted, expected) -> None:
    history = History(answers=[(NOW - ago * MINUTE, count) for count, ago in answers])
    assert stabilised_plainly(history, wanted=wanted, now=NOW) == expected


@pytest.mark.parametrize(
    ("current", "wanted", "bounds", "expected"),
    [
        (5, 7, (3, 8), 7),
        (3, 1, (2, 8), 2),
        (1, 0, (0, 10), 0),
        (20, 1000, (1, 10), 10),
        (3, 1000, (1, 2000), 6),
        (1, 1000, (1, 2000), 4),
    ],
)
def test_without_behaviour_replicas_at_most_double(current, wanted, bounds, expected) -> None:
    assert limited_plainly(bounds=bounds, current=current, wanted=wanted) == expected


@given(
    current=st.integers(1, 100),
    wanted=st.integers(0, 300),
    added=st.lists(st.integers(1, 20), max_size=4),
    removed=st.lists(st.integers(1, 20), max_size=4),
)
def test_rates_never_turn_a_change_around(current, wanted, added, removed) -> None:
    history = History(
        added=spread(added, 30) if added else [], removed=spread(removed, 30) if removed else []
    )
    found = limited(history, Behaviour(), bounds=(1, 200), current=current, wanted=wanted, now=NOW)
    if wanted > current:
        assert current <= found <= wanted
    elif wanted < current:
        assert max(1, wanted) <= found <= current
