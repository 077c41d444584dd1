"""The log of an engine's steps, and a simulation that is calibrated on it."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

import pytest
from tests.serve.engine.workloads import finished, greedy, tiny_engine, write_tiny_llama

from ridgeline.errors import InputError
from ridgeline.records.step_log import StepRow, StepWork, line, read_step_log
from ridgeline.serve.engine.log import StepLog, begin_step_log

ROW = StepRow(1.5, 0.01, 0, StepWork(decodes=2, decode_context=300))


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


def test_a_full_disk_ends_the_log_behind_a_whole_line_and_not_the_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "steps.csv"
    log = StepLog(str(path))
    log.add(ROW)
    whole = path.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, before[1]))
    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                log.add(ROW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == whole
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert "serving goes on" in record.getMessage()
    log.close()


def test_an_engine_that_is_started_again_goes_on_where_the_last_line_is_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("of a server before this one")
    begin_step_log(str(path))
    first = StepLog(str(path))
    first.add(ROW)
    first.close()
    with path.open("a") as torn:
        torn.write(line(ROW)[:7])  # by an engine that was killed
    second = StepLog(str(path))
    second.add(ROW)
    second.close()
    assert read_step_log(path) == [ROW, ROW]
