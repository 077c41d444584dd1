"""One encoder for several tasks, against the totals of a published pipeline."""

import pytest

from ridgeline.cost.backbone_sharing import TaskWork, work_of_totals


def test_three_tasks_of_153_gflops_that_share_their_encoder_take_55_and_a_half() -> None:
    work = TaskWork(encoder_flops=48.75e9, heads_flops=6.75e9, tasks=3)
    assert work.apart_flops == pytest.approx(153e9)
    assert work.shared_flops == pytest.approx(55.5e9)
    assert work.factor == pytest.approx(2.757, abs=5e-4)
    assert work_of_totals(153e9, 55.5e9, tasks=3) == work


def test_totals_that_no_tasks_have_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be 3 tasks"):
        work_of_totals(200e9, 50e9, tasks=3)
    with pytest.raises(ValueError, match="two tasks or more"):
        work_of_totals(2.0, 1.0, tasks=1)
