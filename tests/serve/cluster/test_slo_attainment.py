"""What counts as late."""

from __future__ import annotations

from ridgeline.serve.cluster.slo_attainment import SloAttainment
from ridgeline.serve.messages import Delta


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_tokens_are_counted_and_the_late_ones_among_them() -> None:
    clock = Clock()
    counts = SloAttainment(ttft_seconds=1.0, itl_seconds=0.1, clock=clock)
    seen = counts.begin("a")
    clock.now = 1.5
    assert counts.overdue() == 1
    seen.note(Delta(id="a", tokens=(1, 2)))  # late, and one that took no time
    assert counts.overdue() == 0
    clock.now = 1.55
    seen.note(Delta(id="a", tokens=(3,)))
    clock.now = 1.8
    seen.note(Delta(id="a", tokens=(4, 5)))  # the first of them is late
    seen.note(Delta(id="a", finish_reason="stop"))  # no token
    seen.note(Delta(id="a", index=1, tokens=(9,)))  # another answer's first
    assert (counts.first_tokens, counts.late_first_tokens) == (2, 2)
    assert (counts.next_tokens, counts.late_next_tokens) == (4, 1)


def test_without_limits_nothing_is_late() -> None:
    clock = Clock()
    counts = SloAttainment(clock=clock)
    seen = counts.begin("a")
    clock.now = 100.0
    assert counts.overdue() == 0
    seen.note(Delta(id="a", tokens=(1,)))
    clock.now = 200.0
    seen.note(Delta(id="a", tokens=(2,)))
    assert (counts.late_first_tokens, counts.late_next_tokens) == (0, 0)


def test_a_request_that_ended_without_a_token_is_not_overdue() -> None:
    clock = Clock()
    counts = SloAttainment(ttft_seconds=1.0, clock=clock)
    seen = counts.begin("a")
    clock.now = 5.0
    assert counts.overdue() == 1
    seen.end()
    assert counts.overdue() == 0
