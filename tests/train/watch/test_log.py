"""What a run wrote can be read at any moment, after a crash too."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ridgeline.errors import InputError
from ridgeline.records.training_run import FILE, LoggedStep, LogTail, read_log
from ridgeline.train.watch.interval import TrainingLog


def logged(step: int, loss: float = 3.0) -> LoggedStep:
    return LoggedStep(
        step=step, loss=loss, learning_rate=1e-3, gradient_norm=None, step_seconds=0.5,
        tokens_per_second=1000.0, mfu=None, phases={"forward": 0.2, "other": 0.3},
        peak_memory_bytes=1e9,
    )  # fmt: skip


def test_every_line_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path)
    tail = LogTail(tmp_path)
    for step in (10, 20):
        log.write(logged(step))
        assert [line.step for line in tail.read()] == [step]
    assert tail.read() == []
    log.close()
    assert read_log(tmp_path) == [logged(10), logged(20)]


def test_a_restarted_run_goes_on_after_the_last_whole_line(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path)
    log.write(logged(10))
    log.write(logged(20))
    log.close()
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-7])
    assert read_log(tmp_path) == [logged(10)]
    again = TrainingLog(tmp_path)
    again.write(logged(20, loss=2.5))
    again.close()
    assert read_log(tmp_path) == [logged(10), logged(20, loss=2.5)]


def test_steps_that_were_done_over_count_once(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path)
    for step, loss in ((10, 4.0), (20, 3.0), (30, 2.0), (20, 3.5), (40, 1.0)):
        log.write(logged(step, loss))
    log.close()
    assert [(line.step, line.loss) for line in read_log(tmp_path)] == [
        (10, 4.0), (20, 3.5), (40, 1.0),
    ]  # fmt: skip


def test_a_loss_that_is_not_finite_can_be_read(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path)
    log.write(logged(10, float("inf")))
    log.close()
    assert math.isnan(read_log(tmp_path)[0].loss)


def test_a_line_that_is_no_step_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"step": "ten"}\n')
    with pytest.raises(InputError, match=r"log.jsonl, line 1: Expected `int`"):
        read_log(tmp_path)
    assert read_log(tmp_path / "nowhere") == []


def test_tensorboard_has_the_same_figures(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path)
    log.write(logged(10, loss=2.25))
    log.close()
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in board.Scalars("loss")] == [(10, 2.25)]
    assert board.Scalars("seconds/forward")[0].value == pytest.approx(0.2)
    assert "mfu" not in board.Tags()["scalars"]
