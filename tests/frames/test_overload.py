"""A camera at twice the rate that a pipeline can do: how old results are."""

from __future__ import annotations

import numpy as np
import pytest
from tests.frames.shapes import pipeline, sensor, stage
from tests.frames.simulated_driver import SimulatedDriver

from ridgeline.records.pipeline_shape import EdgePolicy, EdgeShape

STAGES = {"prepare": 0.004, "detect": 0.030, "plan": 0.006}
PERIOD = STAGES["detect"] / 2


def _ages(policy: EdgePolicy, depth: int) -> np.ndarray:
    """Seconds from stamp to result, of the frames that came out, in order."""
    names = list(STAGES)
    shape = pipeline(
        sensor("camera", 1 / PERIOD),
        *(
            stage(name, EdgeShape(source=source, policy=policy, depth=depth))
            for source, name in zip(["camera", *names], names, strict=False)
        ),
        deadline_seconds=0.1,
    )
    driver = SimulatedDriver(
        shape, seconds=lambda name, dice: STAGES[name] * dice.uniform(0.95, 1.0)
    )
    (table,) = driver.run(3000)
    rows = zip(table.stamps, table.ended, table.kinds, strict=True)
    return np.array([e - s for s, e, kind in rows if e and kind in ("delivered", "late")])


@pytest.mark.parametrize(("policy", "depth"), [("drop-oldest", 2), ("latest-only", 1)])
def test_data_stays_young_where_old_frames_give_way(policy: EdgePolicy, depth: int) -> None:
    ages = _ages(policy, depth)
    bound = sum(STAGES.values()) + PERIOD + max(STAGES.values())
    assert np.percentile(ages, 99) <= bound
    assert len(ages) > 1400, "half of the frames come out"


def test_data_grows_old_without_limit_where_all_frames_wait() -> None:
    ages = _ages("unbounded", 1)
    assert len(ages) == 3000
    slope = np.polyfit(np.arange(3000), ages, 1)[0]
    expected = 0.975 * STAGES["detect"] - PERIOD
    assert slope == pytest.approx(expected, rel=0.02), "each frame waits longer than the one before"
