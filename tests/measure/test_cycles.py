"""Steps of more than one kind: an agent plays, then learns."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cli.main import run
from ridgeline.measure.statistics.cycles import cycle_of, has_long_steps

PLAYS = str(Path(__file__).parent / "scripts" / "plays_and_learns.py")


@pytest.mark.usefixtures("warm")
def test_a_profile_of_an_agent_holds_whole_cycles_of_playing_and_learning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["doctor", "--budget", "40", "--json", "--", PLAYS]) == 0
    profile = json.loads(capsys.readouterr().out)["profile"]
    plays = [step for step, seconds in enumerate(profile["step_samples"]) if seconds >= 0.2]
    assert len(plays) >= 3
    assert 60 in {later - earlier for earlier, later in pairwise(plays)}
    assert profile["habits"]["evaluation"]["calls"] == pytest.approx(20 / 60, rel=0.25)


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("played", [pytest.param(0, marks=pytest.mark.slow), 300])
def test_a_step_that_calls_its_model_often_is_no_agent_that_played_before(
    tmp_path: Path, played: int, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "characters.py"
    script.write_text(
        "import torch\n"
        "cell = torch.nn.GRUCell(8, 8)\n"
        "optimizer = torch.optim.Adam(cell.parameters())\n"
        f"for _ in range({played}):\n"
        "    with torch.no_grad():\n"
        "        cell(torch.randn(2, 8))\n"
        "for _ in range(10_000):\n"
        "    state = torch.zeros(2, 8)\n"
        "    for character in torch.randn(12, 2, 8):\n"
        "        state = cell(character, state)\n"
        "    optimizer.zero_grad()\n"
        "    state.square().sum().backward()\n"
        "    optimizer.step()\n"
    )
    assert run(["doctor", "--steps", "5", "--budget", "30", "--json", "--", str(script)]) == 0
    profile = json.loads(capsys.readouterr().out)["profile"]
    told = [one for one in profile["warnings"] if "by the end of its first step" in one]
    assert len(told) == (played > 0)
    assert all("had called its model 300 times more" in " ".join(one.split()) for one in told)


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_playing_that_was_not_among_the_timed_steps_is_told_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["doctor", "--steps", "10", "--budget", "40", "--json", "--", PLAYS]) == 0
    profile = json.loads(capsys.readouterr().out)["profile"]
    assert profile["steps"] == 10
    assert profile["habits"].get("evaluation", {}).get("calls", 0.0) == 0.0
    told = [one for one in profile["warnings"] if "by the end of its first step" in one]
    assert len(told) == 1


@given(st.integers(3, 50), st.integers(3, 8), st.integers(0, 49), st.floats(0.001, 10.0))
def test_a_cycle_is_found_wherever_it_begins(
    steps: int, cycles: int, begins: int, unit: float
) -> None:
    one = [40.0 * unit, *[unit] * (steps - 1)]
    seen = (one * (cycles + 1))[begins % steps :]
    found = cycle_of(seen)
    assert found is not None
    assert found.steps == steps
    assert has_long_steps(seen)


@given(st.lists(st.floats(1.0, 2.9), max_size=60))
def test_steps_that_differ_little_are_of_one_kind(seconds: list[float]) -> None:
    assert cycle_of(seconds) is None
    assert not has_long_steps(seconds)


def test_slices_that_other_programs_take_are_not_what_begins_a_cycle() -> None:
    seconds = [1.0] * 300
    for place in range(0, 300, 7):
        seconds[place] = 30.0
    for place in range(20, 300, 60):
        seconds[place] = 800.0
    found = cycle_of(seconds)
    assert found is not None
    assert found.steps == 60


def test_what_other_programs_disturb_is_no_cycle() -> None:
    seconds = [1.0] * 60
    for place in (3, 11, 40):
        seconds[place] = 30.0
    assert cycle_of(seconds) is None
