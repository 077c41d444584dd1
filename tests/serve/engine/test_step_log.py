"""The log of an engine's steps, and a simulation that is calibrated on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.serve.engine.workloads import finished, greedy, tiny_engine, write_tiny_llama

from ridgeline.errors import InputError
from ridgeline.records.step_log import read_step_log


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


def test_every_step_is_a_line_and_nothing_is_missing(tiny_llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    engine = tiny_engine(tiny_llama, step_log=str(path))
    for number in range(4):
        engine.handle(greedy(str(number), [number + 3] * (20 + 30 * number), 5 + number))
    finished(engine)
    rows = read_step_log(path)
    assert len(rows) == engine.scheduler.counters.steps
    assert sum(row.work.prompt_tokens for row in rows) == 20 + 50 + 80 + 110
    answered = sum(row.work.prompts_done + row.work.decodes for row in rows)
    assert answered == engine.scheduler.counters.generation_tokens == 5 + 6 + 7 + 8
    assert all(row.seconds > 0 for row in rows)
    assert [row.left > 0 for row in rows] == [True] * (len(rows) - 1) + [False]
    engine.close()


def test_a_log_that_cannot_be_written_is_refused_before_the_model_is_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--step-log"):
        tiny_engine(tmp_path / "no model", step_log=str(tmp_path / "no folder" / "steps.csv"))
