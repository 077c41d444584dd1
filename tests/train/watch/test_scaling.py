"""Scaling is strong or weak by what the runs share, and an efficiency of one is ideal."""

from __future__ import annotations

import msgspec
import pytest
from tests.train.data.corpus import recipe, with_data

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.records.measurement import Environment
from ridgeline.records.training_run import Beside, TrainingRun
from ridgeline.train.watch.scaling import scaling, scaling_line


def run(dp: int, global_batch: int, step_seconds: float) -> TrainingRun:
    nothing = Beside(predicted=None, measured=None)
    return TrainingRun(
        recipe=recipe(Layout(dp=dp, global_batch=global_batch)),
        environment=Environment(
            command=[], cwd="", date="", host_cpu="", cpu_count=1, device="", python="", torch="",
            ridgeline="",
        ),
        processes=dp, steps=20, tokens=0, parameters=1, trainable_parameters=1, wall_seconds=1.0,
        # The first steps are slow: caches fill.
        step_samples=[9.0, 9.0, *[step_seconds] * 18],
        tokens_per_second=0.0, mfu=None, final_loss=1.0, validation_loss=None, phases={},
        step_seconds=nothing, peak_memory_bytes=nothing, bytes_sent=None, skipped_steps=0,
    )  # fmt: skip


def test_the_same_global_batch_is_strong_scaling() -> None:
    found = scaling(run(4, 8, 0.5), run(1, 8, 1.6))
    assert found.kind == "strong"
    assert found.speedup == pytest.approx(3.2)
    assert found.efficiency == pytest.approx(0.8)


def test_the_same_batch_per_worker_is_weak_scaling() -> None:
    found = scaling(run(4, 32, 2.0), run(1, 8, 1.6))
    assert found.kind == "weak"
    assert found.efficiency == pytest.approx(0.8)
    assert found.tokens_per_second == 32 * 8 / 2.0


def test_runs_that_cannot_be_compared_are_refused_with_the_difference() -> None:
    with pytest.raises(InputError, match="neither equal"):
        scaling(run(4, 16, 1.0), run(1, 8, 1.0))
    other = run(1, 8, 1.0)
    other = msgspec.structs.replace(other, recipe=with_data(other.recipe, seq=16))
    with pytest.raises(InputError, match=r"differ in data.seq \(8 and 16\)"):
        scaling(run(1, 8, 1.0), other)
    empty = msgspec.structs.replace(run(1, 8, 1.0), step_samples=[])
    with pytest.raises(InputError, match="without steps"):
        scaling(empty, empty)


def test_the_line_names_the_kind_and_the_efficiency() -> None:
    line = scaling_line(run(4, 8, 0.5), run(1, 8, 1.6))
    assert line.startswith("strong scaling: 3.20 times the speed of 1 on 4 processes")
    assert line.endswith("efficiency 80%")
