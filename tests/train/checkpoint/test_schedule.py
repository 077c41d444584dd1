"""When to save: by steps, by seconds, and by what a save costs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from tests.train.checkpoint.recipes import small_run

from ridgeline.cost.checkpoint_interval import daly_interval_seconds
from ridgeline.errors import InputError
from ridgeline.train.checkpoint.schedule import SaveSchedule
from ridgeline.train.ranks import Ranks


@dataclass
class _Alone:
    world: int = 1
    rank: int = 0


def _saves(
    folder: Path, steps: int, step_seconds: float, cost: tuple[float, float], **table: Any
) -> tuple[list[int], SaveSchedule]:
    """Steps after which a run of even steps saves; each save is measured five steps later."""
    now = 0.0
    recipe = small_run(folder, checkpoint={"every_steps": None, **table})
    schedule = SaveSchedule(recipe, cast("Ranks", _Alone()), lambda: now)
    schedule.begin(0)
    saves: list[int] = []
    for step in range(1, steps + 1):
        now += step_seconds
        if saves and step == saves[-1] + 5:
            schedule.note_measured(*cost)
        if schedule.due(step):
            saves.append(step)
            schedule.begin(step)
    return saves, schedule


def test_every_so_many_steps(tmp_path: Path) -> None:
    assert _saves(tmp_path, 20, 1.0, (1.0, 1.0), every_steps=6)[0] == [6, 12, 18]


def test_every_so_many_seconds_whatever_the_step_takes(tmp_path: Path) -> None:
    assert _saves(tmp_path, 100, 0.5, (1.0, 1.0), every_seconds=15.0)[0] == [30, 60, 90]
    assert _saves(tmp_path, 5, 20.0, (1.0, 1.0), every_seconds=15.0)[0] == [1, 2, 3, 4, 5]


def test_daly_from_what_the_first_save_cost(tmp_path: Path) -> None:
    mtbf = 3600.0
    saves, schedule = _saves(tmp_path, 1000, 1.0, (2.0, 4.0), mean_seconds_between_failures=mtbf)
    wanted = daly_interval_seconds(2.0, mtbf)
    assert schedule.interval_seconds == wanted
    assert saves[0] == 1
    gaps = [late - early for early, late in pairwise(saves)]
    assert all(abs(gap - wanted) <= 1 for gap in gaps)
    assert len(gaps) > 5


def test_never_more_often_than_a_save_reaches_the_disk_nor_rarer_than_half_an_hour(
    tmp_path: Path,
) -> None:
    _, slow = _saves(tmp_path, 10, 1.0, (0.01, 90.0), mean_seconds_between_failures=100.0)
    assert slow.interval_seconds == 90.0
    _, rare = _saves(tmp_path, 10, 1.0, (60.0, 60.0))
    assert rare.interval_seconds == 1800.0


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"every_steps": 5, "every_seconds": 5.0}, "give one of them"),
        ({"every_steps": 0}, "every_steps is 0"),
        ({"every_seconds": -1.0}, "every_seconds is -1"),
        ({"keep": -1}, "keep is -1"),
    ],
)
def test_a_table_that_contradicts_itself_is_one_line(
    tmp_path: Path, table: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        _saves(tmp_path, 1, 1.0, (1.0, 1.0), **table)
