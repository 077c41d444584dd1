"""A phase that grows slower while the run goes is named once; noise and accidents are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.train.processes import run_ranks
from tests.train.small_run import write_small_run

from ridgeline.records.training_run import read_log
from ridgeline.train.survive.events import read_events
from ridgeline.train.watch.drift import PhaseDrift

EVEN = {"data": 0.1, "forward": 1.0, "backward": 2.0, "optimizer": 0.2, "other": 0.0}
WARM_UP = EVEN | {"forward": 20.0}


def said(*intervals: dict[str, float]) -> list[str]:
    watch = PhaseDrift()
    return [watch.judge(one) for one in (WARM_UP, *[EVEN] * 5, *intervals)][6:]


@given(
    phase=st.sampled_from(["data", "forward", "backward", "optimizer", "other"]),
    extra=st.floats(0.7, 50.0),
    noise=st.lists(st.floats(-0.01, 0.01), min_size=9, max_size=9),
)
def test_a_phase_that_stays_slower_is_named_once(
    phase: str, extra: float, noise: list[float]
) -> None:
    watch = PhaseDrift()
    watch.judge(WARM_UP)
    found = []
    for place, factor in enumerate(noise):
        interval = {name: seconds * (1 + factor) for name, seconds in EVEN.items()}
        interval[phase] += extra if place >= 5 else 0.0
        found.append(watch.judge(interval))
    assert found[:7] == [""] * 7
    assert found[7].startswith(f"{phase} takes ")
    assert found[8] == ""


@given(noise=st.lists(st.floats(-0.02, 0.02), min_size=20, max_size=40))
def test_noise_is_no_drift(noise: list[float]) -> None:
    watch = PhaseDrift()
    assert not any(
        watch.judge({name: seconds * (1 + factor) for name, seconds in EVEN.items()})
        for factor in noise
    )


def test_two_slow_intervals_of_three_are_accidents() -> None:
    slow = EVEN | {"data": 2.0}
    assert said(slow, EVEN, slow, EVEN, slow, slow) == [""] * 6
    assert [bool(one) for one in said(slow, slow, slow)] == [False, False, True]


def test_what_grows_on_is_said_again_and_so_is_what_comes_back() -> None:
    slow, slower = EVEN | {"data": 1.1}, EVEN | {"data": 3.1}
    again = said(*[slow] * 5, *[slower] * 3, *[EVEN] * 3, *[slow] * 3)
    assert [place for place, one in enumerate(again) if one] == [2, 6, 13]
    assert again[2] == "data takes 11.0 times what it took at first: the step is 30% longer by it"


def test_the_mean_over_ranks_counts_per_step() -> None:
    watch = PhaseDrift()
    ranks = [{name: 10 * seconds for name, seconds in EVEN.items()}] * 2
    late = [ranks[0], ranks[1] | {"data": 21.0}]
    lines = [watch.figures(10, one)["drift"] for one in (*[ranks] * 6, *[late] * 3)]
    assert lines[-1].startswith("data takes 11.0 times")
    assert not any(lines[:-1])


def train_with_a_drift(place: Path) -> None:
    """As a rank of its own: the second line of the log is of a drift."""
    from tests.train.small_run import train_alone

    lines = iter(["", "data takes 2.0 times what it took at first"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PhaseDrift, "judge", lambda *_: next(lines, ""))
        train_alone(place)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_drift_is_in_the_log_an_event_and_a_trace_of_the_next_step(tmp_path: Path) -> None:
    write_small_run(tmp_path, "[run]\nsteps = 8\nlog_every = 2\n[checkpoint]\nkeep = 0\n")
    run_ranks(1, "tests.train.watch.test_drift:train_with_a_drift", tmp_path)
    out = tmp_path / "out1"
    assert [line.step for line in read_log(out) if line.drift] == [4]
    (event,) = [one for one in read_events(out) if one.kind == "drifted"]
    assert (event.step, event.note) == (4, "data takes 2.0 times what it took at first")
    assert [path.name for path in (out / "traces").iterdir()] == ["rank0-step4.pt.trace.json.gz"]
