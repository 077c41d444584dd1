"""The runner of multi-process tests: results by rank, the first error, the time limit."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from tests.train.processes import RankFailed, run_ranks

_HERE = "tests.train.test_processes"


def rank_and_argument(argument: Any) -> tuple[int, int, Any]:
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), argument


def second_fails(argument: Any) -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("the second rank is broken")
    time.sleep(600)


def never_ends(argument: Any) -> None:
    time.sleep(600)


@pytest.mark.multiprocess
def test_each_rank_gets_the_argument_and_its_result_comes_back_in_order() -> None:
    results = run_ranks(2, f"{_HERE}:rank_and_argument", {"steps": 3}, timeout_seconds=60)
    assert results == [(0, 2, {"steps": 3}), (1, 2, {"steps": 3})]


@pytest.mark.multiprocess
def test_the_first_failure_ends_all_and_shows_its_traceback() -> None:
    with pytest.raises(RankFailed, match=r"rank 1(.|\n)*the second rank is broken"):
        run_ranks(2, f"{_HERE}:second_fails", timeout_seconds=60)


@pytest.mark.multiprocess
def test_ranks_that_hang_are_killed_when_the_time_is_up() -> None:
    with pytest.raises(RankFailed, match=r"ranks \[0, 1\] still ran after 2 s"):
        run_ranks(2, f"{_HERE}:never_ends", timeout_seconds=2)
