"""Two real runs, measured in turn."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from ridgeline.measure.wire import Applied
from ridgeline.tune import duel as duels
from ridgeline.tune.duel import Contender, ContenderFailed, DuelPlan, duel

SCRIPT = [str(Path(__file__).parent / "scripts" / "waits_for_data.py")]
WORKERS = Applied(technique="loader-workers", options={"num_workers": 2})
pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gain of a half needs no long look."""
    monkeypatch.setattr(duels, "_BLOCK_SECONDS", 0.2)


def plan(seconds: float = 60.0, *, resident: bool = True) -> DuelPlan:
    return DuelPlan(threshold=0.01, seconds=seconds, resident=resident)


def test_a_real_gain_is_measured_and_its_losses_compared() -> None:
    result = duel(Contender(command=SCRIPT), Contender(command=SCRIPT, stack=(WORKERS,)), plan())
    assert result.interval.low > 1.2
    assert "loader-workers" in result.b_applied
    assert len(result.a_losses) > 20
    assert result.a_losses[:20] == result.b_losses[:20]
    assert result.b_peak_memory_bytes > 0
    assert result.b_non_finite == 0


def test_a_technique_that_changes_nothing_ends_the_duel_at_once() -> None:
    nothing = Applied(technique="no-checkpointing")
    result = duel(Contender(command=SCRIPT), Contender(command=SCRIPT, stack=(nothing,)), plan())
    assert result.had_no_effect
    assert result.interval.rounds == 0


def test_a_script_against_itself_is_no_gain() -> None:
    result = duel(Contender(command=SCRIPT), Contender(command=SCRIPT), plan(5.0))
    assert result.interval.low < 1.05
    assert result.interval.high > 0.95
    assert result.a_losses[:20] == result.b_losses[:20]


def test_a_device_that_holds_one_copy_is_measured_one_run_at_a_time() -> None:
    workers = Contender(command=SCRIPT, stack=(WORKERS,))
    result = duel(Contender(command=SCRIPT), workers, plan(3.0, resident=False))
    assert result.interval.rounds >= 1
    assert result.interval.ratio > 1.2


def test_the_side_that_fails_is_named(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import torch\nraise RuntimeError('no luck')\n")
    with pytest.raises(ContenderFailed, match="no luck") as failure:
        duel(Contender(command=SCRIPT), Contender(command=[str(script)]), plan())
    assert failure.value.side == "b"


def test_a_killed_side_is_named_with_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill_b(sides: list[duels._Side], block: int, *, flip: bool) -> None:
        victim = sides[1].conductor.hellos[0].pid
        threading.Timer(0.0, os.kill, (victim, signal.SIGKILL)).run()
        sides[1].run(block)

    monkeypatch.setattr(duels, "_round", kill_b)
    with pytest.raises(ContenderFailed, match="SIGKILL") as failure:
        duel(Contender(command=SCRIPT), Contender(command=SCRIPT), plan())
    assert failure.value.side == "b"
