"""Typed tables: the shipped ones against their sources, and bad ones in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ridgeline.errors import InputError
from ridgeline.frames.outcomes import measured_fates, sink_ages
from ridgeline.plan.realtime.changes import apply_changes
from ridgeline.plan.realtime.event_loop import simulate_timing
from ridgeline.plan.realtime.figures import worker_seconds
from ridgeline.plan.realtime.stage_table import (
    read_stage_table,
    shipped_tables,
    timing_of_table,
)
from ridgeline.plan.realtime.timing import PipelineTiming

UNEVEN = pytest.mark.xfail(
    strict=True, reason="the source's own stages add up to 2.5 % more than its total"
)
TOTALS = [
    pytest.param(
        table,
        column,
        id=f"{table}-{column}",
        marks=[UNEVEN] if (table, column) == ("bevdet-r50", "agx-orin-fp32") else [],
    )
    for table, path in shipped_tables().items()
    for column in read_stage_table(path).columns
]


def in_column(table: str, column: str) -> PipelineTiming:
    timing = timing_of_table(read_stage_table(shipped_tables()[table]), table)
    stages = {name: replace(one, column=column) for name, one in timing.stages.items()}
    return replace(timing, stages=stages, column=column)


def typed(tmp_path: Path, text: str) -> PipelineTiming:
    path = tmp_path / "table.toml"
    path.write_text(text)
    return timing_of_table(read_stage_table(path), str(path))


@pytest.mark.parametrize(("table", "column"), TOTALS)
def test_a_published_total_is_met_within_two_percent(table: str, column: str) -> None:
    timing = in_column(table, column)
    run = simulate_timing(timing, 50)
    published = timing.columns[column].total_seconds
    found = sink_ages(run, run.shape.sinks[0])
    unloaded = found[0]
    assert unloaded == pytest.approx(published, rel=0.02)


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize("column", ["a4000-fp16", "agx-orin-fp16", "agx-orin-fp32"])
def test_overlapped_stages_are_bound_by_the_slowest(column: str) -> None:
    timing = replace(in_column("bevdet-r50", column), executor="threads")
    sensors = tuple(msgspec.structs.replace(one, rate_hz=None) for one in timing.shape.sensors)
    unpaced = replace(timing, shape=msgspec.structs.replace(timing.shape, sensors=sensors))
    slowest = max(one.mean_seconds for one in timing.stages.values())
    run = simulate_timing(unpaced, 500)
    ends = [at for at in measured_fates(run, "postprocess").ended if at is not None]
    assert (ends[-1] - ends[0]) / (len(ends) - 1) == pytest.approx(slowest, rel=0.02)
    assert max(worker_seconds(unpaced).values()) == pytest.approx(slowest)


HEAD = """
name = "typed"
deadline = "33ms"
[[sensors]]
name = "camera"
rate = "30Hz"
"""


def test_a_spread_has_the_median_and_the_tail_that_were_typed(tmp_path: Path) -> None:
    stage = '[[stages]]\nname = "a"\ninputs = ["camera"]\ntime = {p50 = "8ms", p99 = "20ms"}\n'
    work = typed(tmp_path, HEAD + stage).stages["a"].times.work
    assert np.percentile(work, [50, 99]) == pytest.approx([0.008, 0.020], rel=0.02)


def test_an_absolute_time_keeps_the_spread(tmp_path: Path) -> None:
    stage = '[[stages]]\nname = "a"\ninputs = ["camera"]\ntime = {p50 = "8ms", p99 = "20ms"}\n'
    timing = typed(tmp_path, HEAD + stage)
    changed = apply_changes(timing, ["a=4ms"])
    assert changed.stages["a"].mean_seconds == pytest.approx(0.004)
    run = simulate_timing(changed, 900)
    seconds = np.subtract(run.calls[0].ended, run.calls[0].started)
    p50, p99 = np.percentile(seconds, [50, 99])
    assert p99 / p50 == pytest.approx(2.5, rel=0.1)


STAGE = '[[stages]]\nname = "a"\ninputs = ["camera"]\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + STAGE, "stage a: give `time`, or `times` with one per column"),
        (HEAD + STAGE + 'time = "8 parsecs"\n', "stage a: time: '8 parsecs' is no duration"),
        (HEAD + STAGE + "time = -1.0\n", "stage a: time: -1.0 is negative"),
        (HEAD + STAGE + 'times = {orin = "8ms"}\n', r"times\.orin: there is no \[columns\.orin\]"),
        (HEAD + STAGE + 'time = {p50 = "9ms", p99 = "8ms"}\n', "are no spread"),
        (HEAD + STAGE + 'time = "8ms"\ncore_share = 2.0\n', "core_share = 2 is no share"),
        ('column = "x"\n' + HEAD + STAGE + 'time = "8ms"\n', "column 'x' is none of its columns"),
        ("cores = 0\n" + HEAD + STAGE + 'time = "8ms"\n', "cores = 0: at least 1 is needed"),
        (HEAD + STAGE + 'time = "8ms"\nspeed = 1\n', "unknown field `speed`"),
    ],
)
def test_a_bad_table_is_one_line_that_names_the_file_and_the_place(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(InputError, match=words) as told:
        typed(tmp_path, text)
    assert "table.toml" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_column_without_a_time_of_a_stage_is_named(tmp_path: Path) -> None:
    columns = "".join(
        f'[columns.{name}]\ndevice = "{name}"\nprecision = "fp16"\n' for name in ("orin", "thor")
    )
    with pytest.raises(InputError, match="stage a: has no time in the column thor"):
        typed(tmp_path, HEAD + STAGE + 'times = {orin = "8ms"}\n' + columns)
