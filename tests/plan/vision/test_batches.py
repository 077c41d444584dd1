"""`predict inference --batches`: one estimate for each batch, the knee, the largest in time."""

from __future__ import annotations

import json

import pytest

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.plan.vision.batches import KNEE, batch_curves
from ridgeline.plan.vision.inference import predict_vision_inference

BATCHES = (1, 8, 64, 256)


def test_each_point_is_the_estimate_of_its_batch() -> None:
    found = batch_curves("resnet50", "a100", BATCHES, software=["eager", "tensorrt"])
    for curve in found.curves:
        alone = [
            predict_vision_inference("resnet50", "a100", batch=batch, software=curve.software)
            for batch in BATCHES
        ]
        assert [one.estimate for one in curve.points] == alone
        most = max(one.images_per_second for one in alone)
        before = [one for one in alone if one.batch < curve.knee_batch]
        assert all(one.images_per_second < KNEE * most for one in before)


def test_the_largest_batch_in_time_is_the_last_whose_latency_is_allowed() -> None:
    found = batch_curves("resnet50", "a100", BATCHES, within_seconds=0.02).curves[0]
    late = {one.estimate.batch: not one.in_time for one in found.points}
    assert found.largest_in_time == max(batch for batch, is_late in late.items() if not is_late)
    assert batch_curves("resnet50", "a100", BATCHES, within_seconds=1e-6).curves[0].points[0]
    none = batch_curves("resnet50", "a100", BATCHES, within_seconds=1e-6).curves[0]
    assert none.largest_in_time is None


def test_the_command_prints_the_curves(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "inference", "--model", "resnet50", "--device", "t4", "--batches", "1,16",
             "--software", "eager,tensorrt", "--period", "33ms"]  # fmt: skip
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["software"] for one in found["curves"]] == ["eager", "tensorrt"]
    assert run(words) == 0
    assert "has nine tenths of its throughput" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("batches", ["", "1,x", "0", "-1"])
def test_batches_that_are_none_are_one_line(
    batches: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", "inference", "--model", "resnet50", "--device", "t4", "--batches", batches]
    assert run(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_too_many_batches_are_refused() -> None:
    with pytest.raises(InputError, match="give 1 to 32"):
        batch_curves("resnet50", "a100", range(1, 40))
