"""The time of a vision model on one device: what must make it longer or shorter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.cost.vision.estimate import estimate
from ridgeline.cost.vision.setting import VisionSetting
from ridgeline.errors import InputError
from ridgeline.hardware import device
from ridgeline.models.vision.presets import load_network
from ridgeline.plan.vision.coefficients import shipped_coefficients

RUN = VisionSetting(task="infer", batch=256, precision="amp_fp16")


def seconds(model: str = "resnet50", gpu: str = "rtx-4090", run: VisionSetting = RUN) -> float:
    return estimate(load_network(model), device(gpu), run, shipped_coefficients()).seconds


def test_terms_add_up_and_the_interval_holds_the_prediction() -> None:
    found = estimate(load_network("resnet50"), device("a100"), RUN, shipped_coefficients())
    assert sum(found.terms.values()) == pytest.approx(found.seconds)
    assert found.interval[0] < found.seconds < found.interval[1]
    assert found.bound in ("compute", "memory")


def test_training_takes_longer_than_inference_and_compiling_less_than_eager() -> None:
    assert seconds(run=replace(RUN, task="train")) > 2.0 * seconds()
    assert seconds(run=replace(RUN, software="compile")) < seconds()


def test_one_image_at_a_time_eager_waits_for_launches() -> None:
    one = replace(RUN, batch=1)
    found = estimate(load_network("resnet50"), device("a100"), one, shipped_coefficients())
    assert found.bound == "launches"
    assert seconds(run=replace(one, software="tensorrt")) < seconds(run=one)


def test_a_larger_image_or_a_slower_card_takes_longer() -> None:
    assert seconds(gpu="t4") > 3.0 * seconds()


def test_software_that_nobody_measured_is_one_line() -> None:
    with pytest.raises(InputError, match="not known; use one of"):
        seconds(run=replace(RUN, software="abacus"))


def test_an_architecture_that_was_never_measured_is_said_and_has_a_wider_interval() -> None:
    network, coefficients = load_network("resnet50"), shipped_coefficients()
    known = estimate(network, device("a100"), RUN, coefficients)
    unknown = estimate(network, device("h100"), RUN, coefficients)
    assert not known.assumed
    assert "Hopper" in unknown.assumed[0]
    assert unknown.interval[1] / unknown.seconds > known.interval[1] / known.seconds
