"""Scaling curves of whole layouts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ridgeline.cost.scaling import ScalingCurve
from ridgeline.cost.training.workload import Workload
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.models import load_model
from ridgeline.plan.training.coefficients import coefficients_for
from ridgeline.plan.training.scaling_curves import training_scaling
from ridgeline.records.layout import Layout


def curves(layout: Layout, model: str = "llama-3-8b", device: str = "h100") -> list[ScalingCurve]:
    cluster = parse_cluster(f"{layout.num_devices}x{device}")
    coefficients = coefficients_for(cluster.device)
    return training_scaling(load_model(model), cluster, Workload(seq=8192), layout, coefficients)


def test_weak_scaling_holds_up_better_than_strong() -> None:
    weak, strong = curves(Layout(dp=64, fsdp=64, zero=3, global_batch=512, recompute="full"))
    assert (weak.kind, strong.kind) == ("weak", "strong")
    assert [point.num_devices for point in weak.points] == [2**n for n in range(10)]
    assert weak.points[0].efficiency == strong.points[0].efficiency == 1.0
    by_count = {point.num_devices: point for point in strong.points}
    for point in weak.points:
        if point.num_devices in by_count:
            assert point.efficiency >= by_count[point.num_devices].efficiency - 0.02
    assert strong.points[-1].efficiency < 1.0


def test_a_strong_step_gets_shorter_and_its_efficiency_falls() -> None:
    _, strong = curves(Layout(dp=8, fsdp=8, zero=1, tp=2, sp=True, global_batch=128))
    steps = [point.step_seconds for point in strong.points]
    assert all(before > after for before, after in pairwise(steps))
    assert strong.points[-1].efficiency < 0.99


def test_a_replica_is_all_its_devices() -> None:
    weak = curves(Layout(dp=4, tp=4, sp=True, pp=2, global_batch=64))[0]
    assert [point.num_devices for point in weak.points][:3] == [8, 16, 32]
    assert weak.points[-1].num_devices == 8 * 4 * 8
    for point in weak.points:
        assert point.speedup == pytest.approx(point.efficiency * point.num_devices)


def test_a_batch_of_one_has_no_strong_curve() -> None:
    found = curves(Layout(dp=1, global_batch=1, recompute="full"))
    assert [curve.kind for curve in found] == ["weak"]


def test_experts_need_their_ranks() -> None:
    layout = Layout(dp=16, fsdp=16, zero=1, ep=8, global_batch=64, recompute="full")
    weak = curves(layout, "mixtral-8x7b")[0]
    assert weak.points[0].num_devices == 8


def test_a_hybrid_shard_group_stays_or_shrinks_with_the_ranks() -> None:
    layout = Layout(dp=16, fsdp=8, zero=3, global_batch=64, recompute="full")
    weak = curves(layout)[0]
    assert [point.num_devices for point in weak.points] == [1, 2, 4, 8, 16, 32, 64, 128]
