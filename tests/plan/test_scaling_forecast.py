"""Whole runs on more and more devices."""

from __future__ import annotations

import json

import pytest

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.plan.scaling_forecast import (
    ImageRun,
    TokenRun,
    WholeRun,
    predict_scaling,
    published_runs,
)
from ridgeline.plan.training.estimate import predict_training
from ridgeline.plan.training.filled_layout import filled_layout
from ridgeline.plan.vision.training import predict_vision_training

H100 = parse_cluster("1xH100")


def test_each_point_is_the_estimate_of_that_many_devices() -> None:
    found = predict_scaling(
        "Llama-3-8B", H100, [64, 8], TokenRun(tokens=1e12, global_batch=512, seq=4096)
    )
    for point in found.points:
        cluster = parse_cluster(f"{point.num_devices}xH100")
        layout = filled_layout(cluster, micro_batch=1, global_batch=512)
        estimate = predict_training("Llama-3-8B", cluster, seq=4096, layout=layout)
        assert point.step_seconds == pytest.approx(estimate.step_seconds)
        assert point.verdict == estimate.memory.verdict
    eight, many = found.points
    assert (eight.num_devices, eight.efficiency, eight.bottleneck) == (8, 1.0, "none")
    assert many.ideal_seconds == pytest.approx(eight.run_seconds / 8)
    assert many.efficiency == pytest.approx(many.ideal_seconds / many.run_seconds)


def test_images_are_those_of_the_estimate_and_a_slow_network_costs() -> None:
    fast = predict_scaling("resnet50", parse_cluster("1xV100"), [8, 256], ImageRun(), overlap=0.8)
    one = predict_vision_training("resnet50", "256xV100", batch=256, overlap=0.8)
    assert fast.points[1].step_seconds == pytest.approx(one.step_seconds)
    slow = parse_cluster("1xV100", network_bytes_per_second=1e9 / 8)
    assert predict_scaling("resnet50", slow, [8, 256], ImageRun()).points[1].efficiency < 0.9


@pytest.mark.parametrize("model", ["resnet50", "Llama-3-8B"])
def test_what_hides_nothing_waits_longer(model: str) -> None:
    slow = parse_cluster("1xA100", network_bytes_per_second=10e9 / 8)
    settings = ImageRun() if model == "resnet50" else TokenRun(seq=2048, pp=2, micro_batch=4)
    times = [
        predict_scaling(model, slow, [8, 128], settings, overlap=share).points[1].run_seconds
        for share in (0.0, 0.5, 1.0)
    ]
    assert times[0] > times[1] >= times[2]


def test_published_runs_of_the_same_model_stand_beside_it_in_proportion() -> None:
    whole = {(one.model, one.num_devices): one for one in published_runs()}
    gpt: WholeRun = whole["GPT-3-175B", 1024]
    found = predict_scaling(
        "GPT-3-175B", parse_cluster("1xA100"), [1024],
        TokenRun(tokens=150e9, global_batch=1536, seq=2048, tp=8, pp=8, recompute="full"),
    )  # fmt: skip
    assert found.published[0].run_seconds == pytest.approx(gpt.hours * 3600 / 2)
    assert "in proportion" in found.published[0].note
    # Never fitted to: the authors' own extrapolation is 34 days.
    assert found.points[0].run_seconds == pytest.approx(gpt.hours * 3600 / 2, rel=0.15)


def test_the_model_of_every_published_run_is_known() -> None:
    for one in published_runs():
        assert (one.tokens > 0) != (one.images > 0)
        settings = ImageRun() if one.images else TokenRun(seq=2048, tp=8, pp=2, global_batch=16384)
        assert predict_scaling(one.model, H100, [16], settings)


def test_what_cannot_be_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="--devices"):
        predict_scaling("Llama-3-8B", H100, [0], TokenRun())
    with pytest.raises(InputError, match="--overlap"):
        predict_scaling("Llama-3-8B", H100, [8], TokenRun(), overlap=1.5)
    words = ["predict", "scaling", "--model", "resnet50", "--device", "V100"]
    assert run([*words, "--tp", "2"]) == 2
    assert run([*words, "--devices", "8;9"]) == 2
    assert run([*words, "--devices", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["record"] == "scaling-forecast"
