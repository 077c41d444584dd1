"""The search finds what brute force finds, and its front is non-dominated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.tasks import a_mixture, a_model, a_task

from ridgeline.cost.arrays import join
from ridgeline.cost.training.estimate import estimate_training
from ridgeline.cost.training.layouts import stack_layouts
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.plan.training.enumeration import chunks
from ridgeline.plan.training.search import (
    Candidates,
    Judge,
    best_of_families,
    judge_of,
    pareto,
    search,
)
from ridgeline.plan.training.task import TrainingTask, find
from ridgeline.records.layout import Layout


def judge(task: TrainingTask) -> Judge:
    return judge_of(task.model, task.cluster, task.workload, task.coefficients)


@pytest.mark.sweep("4xH100-mixture")
@pytest.mark.parametrize("model", [a_model(), a_mixture()], ids=lambda model: model.name)
@pytest.mark.parametrize(
    "cluster",
    ["4xH100", *(pytest.param(name, marks=pytest.mark.slow) for name in ("8xH100", "12xL40S"))],
)
def test_the_best_is_that_of_brute_force_over_single_estimates(model, cluster: str) -> None:
    task = a_task(cluster, model=model, global_batch=24)
    layouts = [
        one.at(index)
        for one in chunks(task.space(8))
        for index in range(0, len(one), 25 if model.experts else 1)
    ]
    fits = [e for e in map(task.estimate, layouts) if e.memory.verdict == "fits"]
    found = find(task)
    assert found.step_seconds <= min(e.step_seconds for e in fits) * (1 + 1e-9)
    assert task.estimate(found.best).memory.verdict == "fits"
    if model.experts is None:
        quickest = min(fits, key=lambda e: e.step_seconds)
        assert found.step_seconds == pytest.approx(quickest.step_seconds, rel=1e-9)
        assert found.found.feasible >= len(fits)


@pytest.mark.parametrize("model", [a_model(), a_mixture()], ids=lambda model: model.name)
def test_the_quick_memory_filter_says_what_the_whole_estimate_says(model) -> None:
    task = a_task("16xA100", model=model)
    for layouts in chunks(task.space(8), 4096):
        whole = estimate_training(
            task.model, task.cluster, task.workload, layouts, task.coefficients
        )
        np.testing.assert_allclose(judge(task).peak_bytes(layouts), whole.peak_bytes, rtol=1e-12)


def test_offloading_is_tried_only_where_nothing_else_fits() -> None:
    roomy = find(a_task("16xH100"))
    assert (roomy.found.families.layouts.offload == 0).any()
    task = a_task("2xL4", model=a_model(layers=36), global_batch=2)
    crowded = find(task)
    assert crowded.fits
    assert (crowded.found.families.layouts.offload > 0).any()
    for index in np.flatnonzero(crowded.found.families.layouts.offload > 0)[:20]:
        kept = crowded.found.families.layouts.at(int(index))
        plain = Layout(
            **{**{f: getattr(kept, f) for f in kept.__struct_fields__}, "offload": "none"}
        )
        peak = judge(task).peak_bytes(stack_layouts([plain]))[0]
        assert peak > judge(task).limit_bytes


def test_the_leanest_layout_is_kept_when_none_fits() -> None:
    task = a_task("1xT4", model=a_model(layers=48), global_batch=1)
    outcome = find(task)
    assert not outcome.fits
    peaks = np.concatenate([judge(task).peak_bytes(one) for one in chunks(task.space(1))])
    assert outcome.found.nearest.peak_bytes[0] <= peaks.min()


def test_the_memory_objective_finds_the_leanest_and_time_breaks_ties() -> None:
    task = a_task("8xH100")
    lean, fast = find(task, "memory"), find(task, "time")
    least = lean.found.nearest.peak_bytes[0]
    assert lean.found.families.peak_bytes[0] - least <= 0.01 * judge(task).limit_bytes
    assert lean.step_seconds > fast.step_seconds


def candidates(points: list[tuple[float, float]]) -> Candidates:
    rows = [Layout(global_batch=n + 1, micro_batch=n + 1) for n in range(len(points))]
    return Candidates(
        layouts=stack_layouts(rows),
        step_seconds=np.array([time for time, _ in points]),
        peak_bytes=np.array([peak for _, peak in points]),
    )


points = st.lists(
    st.tuples(st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0]), st.sampled_from([1.0, 2.0, 4.0, 7.0])),
    min_size=1, max_size=30,
)  # fmt: skip


@settings(deadline=None)
@given(points=points)
def test_nothing_on_the_front_is_dominated_and_nothing_off_it_is_free(
    points: list[tuple[float, float]],
) -> None:
    front = pareto(candidates(points))
    kept = list(zip(front.step_seconds.tolist(), front.peak_bytes.tolist(), strict=True))
    for time, peak in kept:
        assert not any(t <= time and p <= peak and (t, p) != (time, peak) for t, p in points)
    for time, peak in points:
        assert any(t <= time and p <= peak for t, p in kept)
    assert kept == sorted(set(kept))


@settings(deadline=None)
@given(first=points, second=points)
def test_the_front_of_parts_is_the_front_of_the_whole(
    first: list[tuple[float, float]], second: list[tuple[float, float]]
) -> None:
    joined = pareto(join([pareto(candidates(first)), pareto(candidates(second))]))
    whole = pareto(candidates(first + second))
    assert joined.step_seconds.tolist() == whole.step_seconds.tolist()
    assert joined.peak_bytes.tolist() == whole.peak_bytes.tolist()


def test_a_family_keeps_its_best_member_only() -> None:
    rows = [
        Layout(tp=2, micro_batch=1, global_batch=4),
        Layout(tp=2, micro_batch=2, global_batch=4),
        Layout(tp=4, micro_batch=2, global_batch=4),
    ]
    all_three = Candidates(
        layouts=stack_layouts(rows),
        step_seconds=np.array([3.0, 2.0, 9.0]),
        peak_bytes=np.ones(3),
    )
    best = best_of_families(all_three, 1.0, "time")
    kept = {(best.layouts.at(n).tp, best.layouts.at(n).micro_batch) for n in range(len(best))}
    assert kept == {(2, 2), (4, 2)}


def test_an_empty_space_is_an_error_of_the_caller() -> None:
    cluster = parse_cluster("1xH100")
    task = a_task("1xH100")
    with pytest.raises(ValueError, match="no layout"):
        search([], judge_of(task.model, cluster, task.workload, task.coefficients))
