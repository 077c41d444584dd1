"""Faults planted in real runs are blamed on the stage and by the kind that they were planted as."""

from __future__ import annotations

import os

import pytest
from bench.realtime_blame import FAULTS, PlantedFault, judge, run_of

pytestmark = [
    pytest.mark.alone,  # other work is a fault, too
    pytest.mark.skipif(
        not os.path.exists("/proc/thread-self/schedstat"),
        reason="the kernel counts no waits for cores",
    ),
]
FRAMES = 27


@pytest.mark.sweep("garbage")
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name.replace(" ", "-") for fault in FAULTS])
def test_a_planted_fault_is_named_by_stage_and_kind(fault: PlantedFault) -> None:
    verdict = judge(fault, run_of(fault, FRAMES))
    assert verdict.misses, "the fault made no frame miss"
    assert verdict.right, f"of {verdict.misses} misses {verdict.named} were named: {verdict.said}"
