"""Where the wall time went: parts that add up, whatever happened to the run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.train.survive.events import Event, EventLog, Kind, read_events
from ridgeline.train.survive.goodput import account

PARTS = (
    "productive_seconds",
    "lost_seconds",
    "checkpoint_seconds",
    "evaluation_seconds",
    "restart_seconds",
    "starting_seconds",
    "finishing_seconds",
    "away_seconds",
)
KINDS: tuple[Kind, ...] = (
    "launched",
    "started",
    "ready",
    "step",
    "checkpoint",
    "evaluated",
    "hung",
    "rolled_back",
    "stopped",
    "finished",
)
events = st.lists(
    st.builds(
        Event,
        kind=st.sampled_from(KINDS),
        time=st.floats(0.0, 1e6, allow_nan=False),
        step=st.integers(0, 50),
    ),
    max_size=40,
)


@given(events)
def test_the_parts_add_up_to_the_wall_time_and_none_is_below_0(given_events: list[Event]) -> None:
    found = account(given_events)
    parts = [getattr(found, name) for name in PARTS]
    assert sum(parts) == pytest.approx(found.wall_seconds, rel=1e-9, abs=1e-6)
    assert min(parts) >= -1e-6
    assert found.restarts >= 0


@given(
    starts=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=8),
    step_seconds=st.floats(0.01, 10.0),
)
def test_each_step_that_stands_counts_once_and_each_step_done_over_is_lost(
    starts: list[tuple[int, int]], step_seconds: float
) -> None:
    """Against a model that keeps a list of steps: (steps done, how many of them a crash takes)."""
    told, now, step, done, lost = [], 0.0, 0, 0, 0
    told.append(Event(kind="launched", time=now))
    for count, taken in starts:
        now += 3.0
        told.append(Event(kind="started", time=now))
        told.append(Event(kind="ready", time=now, step=step))
        for _ in range(count):
            step, done, now = step + 1, done + 1, now + step_seconds
            told.append(Event(kind="step", time=now, step=step))
        back = min(taken, step)
        step, lost = step - back, lost + back
    told.append(Event(kind="started", time=now))
    told.append(Event(kind="ready", time=now, step=step))
    found = account(told)
    assert found.lost_seconds == pytest.approx(lost * step_seconds, abs=1e-6)
    assert found.productive_seconds == pytest.approx((done - lost) * step_seconds, abs=1e-6)
    assert found.starting_seconds == 3.0
    assert found.restart_seconds == pytest.approx(3.0 * (len(starts) - 1))
    assert found.restarts == len(starts)


def test_a_log_of_sparse_steps_still_gives_each_event_its_own_time(tmp_path: Path) -> None:
    clock = iter([0.0, 0.5, 0.9, 1.0, 1.5, 2.0, 2.5]).__next__
    log = EventLog(tmp_path, clock=clock, every_seconds=10.0)
    log.step(1)
    log.step(2)  # takes the place of the first
    with log.during("checkpoint", 2):
        pass
    log.step(3)
    log.write("finished", 3)
    log.close()
    assert [(e.kind, e.time, e.step) for e in read_events(tmp_path)] == [
        ("step", 0.9, 2),
        ("checkpoint", 1.0, 2),
        ("step", 1.5, 3),
        ("finished", 2.0, 3),
    ]


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path: Path) -> None:
    whole = msgspec.json.encode(Event(kind="ready", time=1.0, step=4))
    (tmp_path / "events.jsonl").write_bytes(whole + b"\n" + whole[:11])
    assert [event.step for event in read_events(tmp_path)] == [4]


def test_what_lies_between_two_launches_is_neither_work_nor_restart() -> None:
    told = [
        Event(kind="launched", time=0.0),
        Event(kind="started", time=1.0),
        Event(kind="ready", time=2.0),
        Event(kind="step", time=4.0, step=2),
        Event(kind="stopped", time=5.0, step=2),
        Event(kind="launched", time=105.0),
        Event(kind="started", time=106.0),
        Event(kind="ready", time=107.0, step=2),
    ]
    found = account(told)
    assert found.away_seconds == 100.0
    assert found.restart_seconds == 2.0
    assert found.restarts == 0
