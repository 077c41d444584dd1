"""How many calls of a model show that calls are the steps."""

from __future__ import annotations

import pytest

from ridgeline.measure.child import call_ends
from ridgeline.measure.child.call_ends import CallEnds


def _shown_after(
    monkeypatch: pytest.MonkeyPatch, seconds: float, *, graph: bool = False, few: bool = False
) -> int:
    """Calls of so many seconds each until inference is shown, of nine at most."""
    now = 0.0
    monkeypatch.setattr(call_ends, "perf_counter", lambda: now)
    calls = CallEnds(few=few)
    for number in range(1, 10):
        calls.begins()
        now += seconds
        calls.ends(builds_a_graph=graph)
        now += 100.0  # what lies between calls is no call
        if calls.show_inference():
            return number
    return 0


@pytest.mark.parametrize(
    ("seconds", "calls"), [(0.001, 8), (1.2, 8), (1.5, 7), (3, 4), (6, 2), (20, 2), (31, 1)]
)
def test_the_longer_calls_take_the_fewer_show_that_a_script_infers(
    monkeypatch: pytest.MonkeyPatch, seconds: float, calls: int
) -> None:
    assert _shown_after(monkeypatch, seconds) == calls


def test_calls_that_a_backward_may_follow_are_waited_for_however_long_they_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _shown_after(monkeypatch, 60, graph=True) == 8


def test_one_call_is_enough_where_a_run_before_has_shown_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _shown_after(monkeypatch, 0.001, few=True) == 1
