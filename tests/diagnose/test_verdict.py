"""Exactly one verdict, asked top down: waiting first, then memory, then the roofline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.diagnose.profiles import SHARES, gpu, hot, limits, op, profile, reading, site

from ridgeline.diagnose.diagnosis import diagnose
from ridgeline.diagnose.ranking import worth
from ridgeline.diagnose.verdict import verdict, waiting_seconds
from ridgeline.records import StepProfile, SyncPoint, Verdict
from ridgeline.records.script_facts import Habit

BOUND = {
    Verdict.COMPUTE_BOUND: profile(),
    Verdict.INPUT_BOUND: profile(shares={"data": 1.0}),
    Verdict.COMMUNICATION_BOUND: profile(shares={"communication": 1.0}, world_size=2),
    Verdict.HOST_BOUND: profile(shares={"forward": 1.0}),
    Verdict.SYNC_BOUND: profile(
        shares={"other": 1.0},
        sync_points=[SyncPoint(kind="print", site=site(9), calls=50, seconds=0.09)],
        hot_lines=[hot(9, 0.5)],
    ),
    Verdict.MEMORY_BOUND: profile(
        shares={"forward": 2.0}, more=[op("mul", 2.0, bound="memory", shapes="[9,9]")]
    ),
    Verdict.MEMORY_CAPACITY_BOUND: profile(peak_memory_bytes=15_900_000_000),
    Verdict.UNDECIDED: profile(operators=[]),
}


def test_every_verdict_has_a_profile_here() -> None:
    assert set(BOUND) == set(Verdict)


@pytest.mark.parametrize("expected", list(Verdict))
def test_the_verdict_names_what_takes_the_time(expected: Verdict) -> None:
    assert verdict(reading(BOUND[expected])) is expected


@pytest.mark.parametrize("name", ["cpu_wait_seconds", "peer_wait_seconds"])
def test_a_bound_that_waiting_for_a_core_may_explain_is_not_named(name: str) -> None:
    """Neither of the gaps between operators, which are no Python, nor of operators that stall."""

    def crowded(made: StepProfile, share: float, **settings: int) -> Verdict:
        waited = {name: share * made.step_seconds.mean, **settings}
        return verdict(reading(replace(made, settings=replace(made.settings, **waited))))

    gaps, mostly_gaps = profile(shares={"forward": 1.0}), profile(shares={"forward": 8.0})
    assert crowded(gaps, 0.2) is Verdict.HOST_BOUND, "not crowded"
    assert crowded(gaps, 0.5) is Verdict.UNDECIDED
    assert crowded(mostly_gaps, 0.4) is Verdict.HOST_BOUND, "it is that without them, too"
    assert crowded(gaps, 0.5, num_threads=16) is Verdict.HOST_BOUND, "its own threads"
    starved = profile(shares={"data": 0.6})
    assert crowded(starved, 0.5) is Verdict.UNDECIDED
    assert crowded(profile(), 0.4) is Verdict.COMPUTE_BOUND


def test_whoever_asks_a_cpu_for_a_value_does_not_wait_for_it() -> None:
    asking = {
        "shares": {"other": 1.0},
        "sync_points": [SyncPoint(kind="item", site=site(9), calls=5000, seconds=0.01)],
        "hot_lines": [hot(9, 0.5)],
    }
    assert verdict(reading(profile(**asking))) is Verdict.HOST_BOUND
    assert verdict(reading(gpu(**asking))) is Verdict.SYNC_BOUND


def test_a_process_that_sleeps_between_calls_waits_for_its_input() -> None:
    """And one that computes in them, in any thread, or wants a core, is bound by the host."""

    def served(**settings: float) -> Verdict:
        return verdict(reading(profile(shares={"other": 8.0}, settings=settings)))

    assert served(cpu_seconds=0.09) is Verdict.INPUT_BOUND
    assert served(cpu_seconds=0.9) is Verdict.HOST_BOUND
    assert served(cpu_seconds=0.6, cpu_wait_seconds=0.2) is Verdict.HOST_BOUND
    assert served() is Verdict.HOST_BOUND, "a record that does not tell"


def test_copies_to_a_gpu_are_input() -> None:
    assert verdict(reading(gpu(shares={"copy": 1.0}))) is Verdict.INPUT_BOUND


def test_full_memory_is_not_the_verdict_of_a_step_that_waits_for_data() -> None:
    starved = profile(shares={"data": 1.0}, peak_memory_bytes=15_900_000_000)
    assert verdict(reading(starved)) is Verdict.INPUT_BOUND


def test_without_operators_only_what_is_waited_for_can_be_named() -> None:
    starved = profile(operators=[], shares={"data": 1.0})
    assert verdict(reading(starved)) is Verdict.INPUT_BOUND
    full = profile(operators=[], peak_memory_bytes=15_900_000_000)
    assert verdict(reading(full)) is Verdict.MEMORY_CAPACITY_BOUND


@st.composite
def profiles(draw: st.DrawFn) -> StepProfile:
    part = st.floats(min_value=0.0, max_value=3.0)
    shares = {name: draw(part) for name in SHARES}
    phases = ("forward", "backward", "optimizer", "other")
    more = [
        op(
            draw(st.sampled_from(["mm", "mul", "_softmax", "isnan", "add_", "zero_"])),
            draw(st.floats(min_value=0.0, max_value=1.0)),
            phase=draw(st.sampled_from(phases)),
            bound=draw(st.sampled_from(["compute", "memory", "overhead", ""])),
            dtype=draw(st.sampled_from(["float32", "bfloat16", "float16", "float64", ""])),
            shapes=draw(st.sampled_from(["", "[4]", "[512,512],[512,512]", "[2,4,128,128]"])),
            calls=draw(st.floats(min_value=0.1, max_value=5000)),
        )
        for _ in range(draw(st.integers(0, 6)))
    ]
    return profile(
        shares=shares,
        more=more,
        hot_lines=[hot(3, draw(st.floats(0, 1)))],
        sync_points=[SyncPoint(kind="item", site=site(3), calls=draw(part) * 100, seconds=0.01)],
        optimizer={"fused": draw(st.booleans()), "zeroes_in_place": draw(st.booleans())},
        loader={
            "num_workers": draw(st.integers(0, 8)),
            "fetch_seconds": draw(st.none() | part),
            "wait_seconds": draw(part),
            "restarts": draw(st.integers(0, 3)),
            "start_seconds": draw(part),
        },
        settings={
            "anomaly_detection": draw(st.booleans()),
            "gc_seconds": draw(part),
            "num_threads": draw(st.integers(1, 64)),
        },
        habits={
            "retain_graph": Habit(calls=draw(st.sampled_from([0.0, 1.0]))),
            "save": Habit(seconds=draw(part)),
            "recompute": Habit(seconds=draw(part)),
            "math_attention": Habit(calls=draw(st.sampled_from([0.0, 2.0]))),
        },
        peak_memory_bytes=draw(st.integers(0, 20_000_000_000)),
        world_size=draw(st.integers(1, 2)),
    )


@given(made=profiles())
def test_any_profile_gets_sound_findings_in_order_of_worth(made: StepProfile) -> None:
    diagnosis = diagnose([made], limits())
    for finding in diagnosis.findings:
        assert 0.0 <= finding.share <= 1.0
        assert 1.0 <= finding.gain_low <= finding.gain_high <= 20.0 * (1 + 1e-9)
    order = [worth(finding) for finding in diagnosis.findings]
    assert order == sorted(order, reverse=True)
    assert len({finding.cause for finding in diagnosis.findings}) == len(diagnosis.findings)


@given(made=profiles())
def test_what_is_waited_for_is_never_more_than_the_step(made: StepProfile) -> None:
    seen = reading(made)
    for seconds in waiting_seconds(seen).values():
        assert 0.0 <= seconds <= seen.step_seconds * (1 + 1e-9)
