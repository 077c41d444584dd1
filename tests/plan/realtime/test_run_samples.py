"""Times out of a run: simulated as it was a run comes out as it was, and under other policies."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.plan.realtime.timings import chain, drifting, punctual, run_of, with_policy

from ridgeline.errors import InputError
from ridgeline.frames.outcomes import sink_ages
from ridgeline.plan.realtime.event_loop import simulate_timing
from ridgeline.plan.realtime.figures import sink_figures
from ridgeline.plan.realtime.run_samples import timing_of_run
from ridgeline.plan.realtime.timing import PipelineTiming, SimulatedExecutor
from ridgeline.records.pipeline_shape import EdgePolicy
from ridgeline.records.realtime_run import RealtimeRun

POLICIES: tuple[EdgePolicy, ...] = ("block", "drop-oldest", "latest-only")
FRAMES = 1500


def loaded(executor: SimulatedExecutor, cores: int | None) -> PipelineTiming:
    """A pipeline near its capacity, whose frames stay slow for a while."""
    means = {"inline": 0.03, "threads": 0.06}[executor]
    times = {
        "pre": drifting(1, FRAMES, 0.5 * means, 0.2),
        "backbone": drifting(2, FRAMES, 1.6 * means, 0.3),
        "head": drifting(3, FRAMES, 0.8 * means, 0.3),
    }
    timing = chain(times, executor=executor, cores=cores, deadline=0.25, core_share=0.8)
    late = replace(punctual(FRAMES), delay=np.random.default_rng(5).exponential(0.002, size=FRAMES))
    return replace(timing, sensors={"camera": late})


def sink_of(run: RealtimeRun) -> list[float]:
    return sink_ages(run, run.shape.sinks[0]).tolist()


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("executor", ["inline", "threads"])
def test_a_run_simulated_as_it_was_comes_out_as_it_was(
    executor: SimulatedExecutor, policy: EdgePolicy
) -> None:
    run = run_of(with_policy(loaded(executor, cores=2), policy), FRAMES)
    again = simulate_timing(timing_of_run(run, "run.json"), FRAMES)
    assert sink_of(again) == pytest.approx(sink_of(run), rel=1e-6)


@pytest.mark.sweep("block-inline")
@pytest.mark.parametrize("executor", ["inline", "threads"])
@pytest.mark.parametrize("measured", POLICIES)
def test_a_run_under_one_policy_foretells_the_others(
    executor: SimulatedExecutor, measured: EdgePolicy
) -> None:
    truth = loaded(executor, cores=2)
    timing = timing_of_run(run_of(with_policy(truth, measured), FRAMES), "run.json")
    for policy in POLICIES:
        real = sink_figures(run_of(with_policy(truth, policy), FRAMES))[0]
        found = sink_figures(simulate_timing(with_policy(timing, policy), FRAMES))[0]
        assert real.age is not None
        assert found.age is not None
        assert real.miss_share is not None
        assert found.miss_share is not None
        assert found.age.p50 == pytest.approx(real.age.p50, rel=0.03)
        assert found.age.p99 == pytest.approx(real.age.p99, rel=0.15)
        allowed = max(0.01, 0.2 * real.miss_share)
        assert found.miss_share == pytest.approx(real.miss_share, abs=allowed)


def test_contention_is_subtracted_so_more_cores_help() -> None:
    times = {name: drifting(k, FRAMES, 0.03, 0.3) for k, name in enumerate("abc")}
    truth = chain(times, rate=12.5, cores=1, core_share=0.8, policy="drop-oldest")
    timing = timing_of_run(run_of(truth, FRAMES), "run.json")
    found = sink_of(simulate_timing(replace(timing, cores=None), FRAMES))
    real = sink_of(simulate_timing(replace(truth, cores=None), FRAMES))
    crowded = sink_of(simulate_timing(truth, FRAMES))
    assert np.median(found) == pytest.approx(np.median(real), rel=0.06)
    assert np.median(crowded) > 1.1 * np.median(real)


def test_warm_up_frames_are_no_samples() -> None:
    times = {"a": [0.09] * 10 + [0.01] * 50}
    run = run_of(chain(times), 60, warmup_frames=10)
    timing = timing_of_run(run, "run.json")
    assert sink_ages(simulate_timing(timing, 200), "a").max() < 0.02


def test_gaps_and_repeated_identities_of_a_sensor_come_again() -> None:
    timing = chain({"a": [0.01]}, rate=10.0)
    slots = np.delete(np.arange(100), [20, 21, 70])
    sensor = replace(punctual(97), slots=slots, repeated=slots == 50)
    timing = replace(timing, sensors={"camera": sensor}, slots=100)
    run = run_of(timing, 100)
    assert {one.kind for one in run.sensor_faults} == {"gap", "repeated id"}
    again = simulate_timing(timing_of_run(run, "run.json"), 100)
    assert [(one.kind, one.frame) for one in again.sensor_faults] == [
        (one.kind, one.frame) for one in run.sensor_faults
    ]
    assert again.fates[0].kinds == run.fates[0].kinds


def test_a_stage_that_was_never_called_is_named() -> None:
    run = run_of(chain({"a": [0.01], "b": [0.01]}), 20)
    quiet = msgspec.structs.replace(
        run.calls[1], frames=[], ready=[], started=[], ended=[], modes=[], cpu_seconds=[]
    )
    with pytest.raises(InputError, match=r"run\.json: the stage b was never called in full"):
        timing_of_run(msgspec.structs.replace(run, calls=[run.calls[0], quiet]), "run.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"executor": "simulated"}, "was simulated itself"),
        ({"fates": []}, "has no frame of the sensor camera"),
        ({"warmup_frames": 20}, "no frame of camera after its warm-up"),
    ],
)
def test_a_run_that_tells_nothing_is_refused(change: dict[str, object], words: str) -> None:
    run = msgspec.structs.replace(run_of(chain({"a": [0.01]}), 20), **change)
    with pytest.raises(InputError, match=words):
        timing_of_run(run, "run.json")


def test_a_file_that_was_cut_is_refused() -> None:
    run = run_of(chain({"a": [0.01]}), 20)
    short = msgspec.structs.replace(run.calls[0], ended=run.calls[0].ended[:-1])
    with pytest.raises(InputError, match="columns differ in length"):
        timing_of_run(msgspec.structs.replace(run, calls=[short]), "run.json")
    strange = msgspec.structs.replace(run.calls[0], frames=[n + 900 for n in run.calls[0].frames])
    with pytest.raises(InputError, match="frames that no sensor sent"):
        timing_of_run(msgspec.structs.replace(run, calls=[strange]), "run.json")
