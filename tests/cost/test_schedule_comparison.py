"""Pipeline schedules beside each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.pipeline_schedule import ChunkSeconds, bubble_fraction
from ridgeline.cost.schedule_comparison import compare_schedules

EACH = ChunkSeconds(forward_seconds=0.01, backward_input_seconds=0.01, backward_weight_seconds=0.01)


@given(st.integers(1, 6), st.integers(1, 6))
def test_bubbles_are_those_of_the_formula(stages: int, groups: int) -> None:
    microbatches = stages * groups
    found = compare_schedules("1f1b", stages, microbatches, EACH)
    by_name = {one.schedule: one for one in found.schedules}
    assert set(by_name) == {"gpipe", "1f1b", "interleaved", "zero-bubble"}
    plain = bubble_fraction(stages, microbatches)
    assert by_name["1f1b"].bubble_fraction == pytest.approx(plain)
    assert by_name["gpipe"].bubble_fraction == pytest.approx(plain)
    assert by_name["interleaved"].bubble_fraction == pytest.approx(
        bubble_fraction(stages, microbatches, 2)
    )
    assert by_name["zero-bubble"].bubble_fraction <= plain + 1e-9
    assert found.ideal_seconds == pytest.approx(0.03 * microbatches)


def test_a_schedule_that_cannot_be_is_left_out_or_refused() -> None:
    found = compare_schedules("1f1b", 4, 6, EACH)
    assert "interleaved" not in {one.schedule for one in found.schedules}
    with pytest.raises(ValueError, match="multiple of 4"):
        compare_schedules("interleaved", 4, 6, EACH, 2)
    with pytest.raises(ValueError, match="fewer micro-batches"):
        compare_schedules("1f1b", 100, 1000, EACH)
