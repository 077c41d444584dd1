"""Faults planted in real runs are blamed on the stage and by the kind that they were planted as."""

from __future__ import annotations

import os

import pytest
from bench.realtime_blame import (
    EVERY,
    FAULTS,
    STRUCK_SECONDS,
    PlantedFault,
    judge,
    run_of,
    strikes,
)

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/thread-self/schedstat"),
    reason="the kernel counts no waits for cores",
)
FRAMES = 27


@pytest.mark.alone  # other work is a fault, too
@pytest.mark.sweep("stage-that-raises")  # which is no matter of time
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name.replace(" ", "-") for fault in FAULTS])
def test_a_planted_fault_is_named_by_stage_and_kind(fault: PlantedFault) -> None:
    verdict = judge(fault, run_of(fault, FRAMES))
    assert verdict.misses, "the fault made no frame miss"
    assert verdict.right, f"of {verdict.misses} misses {verdict.named} were named: {verdict.said}"


def test_the_garbage_that_a_stage_collects_is_seen_in_its_calls() -> None:
    (fault,) = [one for one in FAULTS if one.name == "garbage"]
    run = run_of(fault, EVERY + 1)
    (calls,) = [one for one in run.calls if one.stage == "detect"]
    (at,) = [at for at, frame in enumerate(calls.frames) if strikes(frame)]
    began, ended = calls.started[at], calls.ended[at]
    inside = [one for one in run.collections if began <= one.started <= one.ended <= ended]
    # It collects until it has used that much of a core, and does little else.
    assert sum(one.ended - one.started for one in inside) > STRUCK_SECONDS / 2
    assert {one.thread for one in inside} == {"detect"}
