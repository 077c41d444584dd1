"""Clipping, split losses and shards on four real ranks, started once."""

from __future__ import annotations

import pytest
from tests.train.processes import run_ranks
from tests.train.rank_checks import CHECKS


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, str]]:
    return run_ranks(4, "tests.train.rank_checks:run_checks", timeout_seconds=120)


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_on_four_ranks(name: str, outcomes: list[dict[str, str]]) -> None:
    failures = [outcome[name] for outcome in outcomes if outcome[name]]
    assert not failures, failures[0]
