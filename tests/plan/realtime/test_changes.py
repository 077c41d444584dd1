"""What-ifs: each does what it says, in any order, and a mistake is one line with the cure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.plan.realtime.timings import chain, drifting, run_of

from ridgeline.errors import InputError
from ridgeline.frames.outcomes import sink_ages
from ridgeline.plan.realtime.answer import SimulationSource, simulate_realtime
from ridgeline.plan.realtime.changes import apply_changes
from ridgeline.plan.realtime.event_loop import simulate_timing
from ridgeline.plan.realtime.figures import sink_figures
from ridgeline.plan.realtime.run_samples import timing_of_run
from ridgeline.plan.realtime.stage_table import read_stage_table, shipped_tables, timing_of_table
from ridgeline.plan.realtime.timing import PipelineTiming


def three() -> PipelineTiming:
    """10 + 30 + 20 ms at 10 Hz, each stage with a worker."""
    return chain({"pre": [0.01], "backbone": [0.03], "head": [0.02]}, deadline=0.1)


def age(timing: PipelineTiming) -> float:
    run = simulate_timing(timing, 40)
    return float(np.median(sink_ages(run, run.shape.sinks[0])))


def bevdet() -> PipelineTiming:
    return timing_of_table(read_stage_table(shipped_tables()["bevdet-r50"]), "bevdet-r50")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("backbone x0.5", 0.045),
        ("backbone*0.5", 0.045),
        ("backbone ×0.5", 0.045),
        ("all x0.5", 0.03),
        ("all x0.5, head x2", 0.04),
        ("backbone=5ms", 0.035),
        ("without backbone", 0.03),
        ("without pre", 0.05),
        ("without head", 0.04),
        ("backbone x0.5, head x2", 0.065),
        ("streams=2", 0.06),
        ("cores=1", 0.06),
        ("rate=5Hz", 0.06),
        ("executor=inline", 0.06),
        ("head.processor=gpu, backbone.processor=gpu, processors.gpu=1", 0.06),
    ],
)
def test_a_change_moves_the_age_by_what_it_says(change: str, expected: float) -> None:
    assert age(apply_changes(three(), [change])) == pytest.approx(expected)


def test_a_change_moves_what_is_lost() -> None:
    crowded = apply_changes(three(), ["backbone=150ms", "policy=latest-only"])
    sink = sink_figures(simulate_timing(crowded, 60))[0]
    assert any(where.endswith("oldest") for where in sink.losses)
    waiting = apply_changes(three(), ["backbone=150ms", "policy=unbounded"])
    assert sink_figures(simulate_timing(waiting, 60))[0].dropped == 0
    given_up = apply_changes(three(), ["backbone=150ms", "policy=unbounded", "on_miss=drop"])
    sink = sink_figures(simulate_timing(given_up, 60))[0]
    assert any(where.endswith("too late") for where in sink.losses)
    lenient = apply_changes(three(), ["backbone=90ms", "deadline=1s"])
    assert sink_figures(simulate_timing(lenient, 60))[0].miss_share == 0.0


def test_a_cheaper_call_is_made_of_late_frames() -> None:
    changes = ["backbone=120ms", "backbone.on_miss=degrade", "backbone.cheaper=20ms"]
    run = simulate_timing(apply_changes(three(), changes), 60)
    assert "degrade" in run.calls[1].modes


def test_streams_share_what_is_scarce() -> None:
    alone = apply_changes(three(), ["executor=inline"])
    two = apply_changes(three(), ["streams=2", "executor=inline", "rate=5Hz"])
    run = simulate_timing(two, 40)
    assert run.shape.sinks == ("head", "head #2")
    both = [np.median(sink_ages(run, sink)) for sink in run.shape.sinks]
    assert max(both) == pytest.approx(2 * age(alone))


def test_devices_and_precisions_are_columns_and_factors_hold_on_any_of_them() -> None:
    totals = {
        change: sum(one.mean_seconds for one in apply_changes(bevdet(), change).stages.values())
        for change in (
            ("precision=int8",),
            ("device=a4000",),
            ("device=a4000", "image stage x0.5"),
            ("image stage x0.5", "device=a4000"),
            ("image stage.precision=int8",),
            ("all x0.5", "device=a4000"),
        )
    }
    assert list(totals.values()) == pytest.approx(
        [0.020707, 0.013817, 0.0095035, 0.0095035, 0.022504, 0.0069085]
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("backbon x0.5", "no stage 'backbon'; there are pre, backbone, head"),
        ("rat=36Hz", "'rat' is nothing that can be changed; did you mean rate?"),
        ("backbone", "'backbone' says nothing; write STAGE x0.6"),
        ("rate=fast", "'fast' is no rate"),
        ("policy=best", "'best' is none of block, drop-oldest"),
        ("cores=0", "'0' is no number from 1 on"),
        ("backbone=ten", "'ten' is no duration"),
        ("precision=int8", "a run has times of one device at one precision"),
        ("camera.cheaper=1ms", "camera is a sensor; this is said of a stage"),
        ("camera.policy=block", "camera is a sensor; edges are said of the stage"),
        ("backbone.rate=3Hz", "backbone is a stage; rates are of sensors"),
        ("nobody.depth=3", "no stage or sensor 'nobody'"),
        ("processors.npu=1", "no stage runs on a processor 'npu'; there are cpu"),
        ("without pre, without backbone, without head", "head is the only stage"),
    ],
)
def test_a_change_that_is_none_is_one_line_with_the_cure(change: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as told:
        apply_changes(three(), [change])
    assert str(told.value).startswith("--what-if ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("device=thor", "no times of 'thor'; there are RTX A4000, Jetson AGX Orin"),
        ("precision=fp4", "no times of Jetson AGX Orin in 'fp4'; there are fp32, fp16, int8"),
    ],
)
def test_a_column_that_the_table_lacks_is_named(change: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        apply_changes(bevdet(), [change])


@pytest.mark.slow
def test_what_it_takes_is_a_factor_that_meets_the_target_and_none_where_none_does() -> None:
    source = SimulationSource(timing=three(), described="typed")
    answer = simulate_realtime(source, meet_seconds=0.045, max_miss=0.0)
    assert answer.target is not None
    found = {one.stage: one.factor for one in answer.target.factors}
    assert found["backbone"] == pytest.approx(0.5, abs=0.01)
    assert found["head"] == pytest.approx(0.25, abs=0.01)
    assert found["pre"] is None
    assert found[""] == pytest.approx(0.75, abs=0.01)
    easy = simulate_realtime(source, meet_seconds=0.07).target
    assert easy is not None
    assert easy.met


def test_every_change_stands_alone_and_all_stand_together() -> None:
    source = SimulationSource(timing=three(), described="typed")
    answer = simulate_realtime(source, what_if=["backbone x0.5", "head x0.5"])
    middles = [one.sinks[0].age.p50 for one in answer.what_if if one.sinks[0].age]
    assert middles == pytest.approx([0.045, 0.05])
    assert answer.together is not None
    assert answer.together.sinks[0].age is not None
    assert answer.together.sinks[0].age.p50 == pytest.approx(0.035)


def test_a_simulation_that_misses_its_own_run_says_so() -> None:
    run = run_of(chain({"a": drifting(1, 300, 0.05, 0.2)}, deadline=0.08), 300)
    timing = timing_of_run(run, "run.json")
    honest = SimulationSource(timing=timing, described="", measured=sink_figures(run))
    assert not simulate_realtime(honest).notes
    slow = replace(timing.stages["a"], scale=1.3)
    off = replace(honest, timing=replace(timing, stages={"a": slow}))
    assert "differs from the run: P50 by +30%" in simulate_realtime(off).notes[-1]


def test_jitter_keeps_the_median_and_moves_the_tail() -> None:
    from ridgeline.plan.realtime.answer import read_source

    table = read_source("bevdet-r50").timing
    jittered = apply_changes(table, ["jitter=2"])
    for name, stage in jittered.stages.items():
        before = float(table.stages[name].times.work[0])
        assert np.quantile(stage.times.work, 0.5) == pytest.approx(before, rel=0.01)
        assert np.quantile(stage.times.work, 0.99) == pytest.approx(2 * before, rel=0.03)
    one = apply_changes(table, ["image stage.jitter=2"])
    assert len(one.stages["align"].times.work) == 1
    for value in ("0.5", "nan", "x", "1e9"):
        with pytest.raises(InputError, match="P99 over P50"):
            apply_changes(table, [f"jitter={value}"])
