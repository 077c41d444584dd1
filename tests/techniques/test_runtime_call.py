"""A runtime under a running module: what the script gets, whatever happens underneath."""

from __future__ import annotations

import glob
import importlib
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtimes.planted import modules

from ridgeline.errors import InputError
from ridgeline.measure.child.points import Points
from ridgeline.techniques import technique

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert not glob.glob(str(tmp_path / "ridgeline-runtime-*"))


def images(batch: int = 2, size: int = 64) -> torch.Tensor:
    return torch.rand(batch, 3, size, size)


def under(name: str, model: torch.nn.Module, **options: bool) -> tuple[Points, Any]:
    points = Points()
    undo = technique(name).apply(points, options)
    for prepare in points.on_model:
        points.call(prepare, model)
    return points, undo


def counted_conversions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What stays free in each conversion from now on."""
    runtime_call = importlib.import_module("ridgeline.measure.child.runtime_call")
    convert, seen = runtime_call.convert, []

    def counting(*args: Any, dynamic: tuple[str, ...], **kwargs: Any) -> Any:
        seen.append(dynamic)
        return convert(*args, dynamic=dynamic, **kwargs)

    monkeypatch.setattr(runtime_call, "convert", counting)
    return seen


@pytest.mark.slow
def test_the_script_gets_its_answers_at_every_shape_and_its_call_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    converted = counted_conversions(monkeypatch)
    torch.manual_seed(0)
    model = modules.WritesAView().eval()
    points, undo = under("onnx-runtime", model)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    with torch.no_grad():
        for pixels in (images(), images(), images(3), images(3), images(5), images(2, 32)):
            now = torch.get_rng_state()
            assert torch.allclose(model(pixels), model._call_impl(pixels), atol=1e-5)
            assert torch.equal(now, torch.get_rng_state())
    assert "WritesAView answered by ONNX Runtime in fp32 (SQNR" in points.effects["onnx-runtime"]
    assert "4 shapes of inputs" in points.effects["onnx-runtime"]
    assert len(converted) == 3, "the batch is free in the second, and the size in the third"
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]  # noqa: NPY002
    undo()
    assert model._compiled_call_impl is None


def test_what_cannot_be_converted_runs_on_and_the_row_has_the_line() -> None:
    model = modules.UsesNumpy().eval()
    points, _ = under("openvino", model)
    with torch.no_grad():
        pixels = images()
        assert torch.equal(model(pixels), model._call_impl(pixels))
    assert points.effects == {}
    assert "modules.py" in points.refused["openvino"]
    assert "leaves torch with .numpy()" in points.refused["openvino"]


@pytest.mark.slow
def test_int8_takes_the_scripts_first_inputs_and_answers_after_it_was_compared() -> None:
    torch.manual_seed(0)
    model = modules.WritesAView().eval()
    points, _ = under("onnx-runtime", model, int8=True)
    with torch.no_grad():
        for call in range(8):
            pixels = images(8)
            found, wanted = model(pixels), model._call_impl(pixels)
            assert torch.equal(found, wanted) == (call < 6)
            assert bool(points.preparing) == (call < 5), call
    words = points.effects["onnx-runtime"]
    assert "in int8 (SQNR" in words
    assert "int8 ranges from 32 samples" in words


def test_while_an_int8_program_is_made_it_is_said_of_how_many_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[dict[str, str]] = []

    def convert(*_: Any, **__: Any) -> Any:
        told.append(dict(points.preparing))
        raise InputError("that is enough")

    runtime_call = importlib.import_module("ridgeline.measure.child.runtime_call")
    monkeypatch.setattr(runtime_call, "convert", convert)
    model = modules.WritesAView().eval()
    points, _ = under("onnx-runtime", model, int8=True)
    with torch.no_grad():
        for _ in range(6):
            model(images(8))
    assert told == [{"onnx-runtime": "its int8 program was being made of 4 inputs"}]


@pytest.mark.slow
def test_an_int8_program_that_is_too_far_off_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = importlib.import_module("ridgeline.measure.child.agreement")
    monkeypatch.setattr(agreement, "LEAST_SQNR", {"int8": 90.0})
    model = modules.WritesAView().eval()
    points, _ = under("onnx-runtime", model, int8=True)
    with torch.no_grad():
        for _ in range(8):
            pixels = images(8)
            assert torch.equal(model(pixels), model._call_impl(pixels))
    assert points.effects == {}
    assert points.preparing == {}
    assert "int8 needs 90" in points.refused["onnx-runtime"]


def test_what_the_script_raises_is_the_scripts_own() -> None:
    model = modules.WritesAView().eval()
    points, _ = under("onnx-runtime", model)
    with torch.no_grad(), pytest.raises(RuntimeError, match="expected input"):
        model(torch.rand(2, 5, 64, 64))
    assert "in PyTorch itself" in points.refused["onnx-runtime"]


class Wraps(torch.nn.Module):
    """A detector's wrapper that holds a model in evaluation mode and is in training mode itself."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(pixels)
        return found


@pytest.mark.slow
def test_a_wrapper_that_nobody_called_eval_of_is_answered_like_the_model_in_it() -> None:
    model = Wraps(modules.WritesAView())
    assert model.training
    points, _ = under("onnx-runtime", model)
    with torch.no_grad():
        for _ in range(2):
            pixels = images()
            assert torch.allclose(model(pixels), model._call_impl(pixels), atol=1e-5)
    assert "Wraps answered by ONNX Runtime" in points.effects["onnx-runtime"]


def test_a_model_in_training_mode_stays_in_eager_pytorch_and_the_row_says_what_to_call() -> None:
    model = modules.HasDropout().train()
    points, _ = under("openvino", model, int8=True)
    with torch.no_grad():
        model(images())
    assert points.effects == {}
    assert points.preparing == {}, "nobody waits for it"
    assert "in which its BatchNorm2d computes something else" in points.refused["openvino"]
    assert points.refused["openvino"].endswith("call model.eval()")


@pytest.mark.slow
def test_one_of_two_models_that_is_refused_does_not_hide_that_the_other_is_answered() -> None:
    detector, reader = modules.WritesAView().eval(), modules.UsesNumpy().eval()
    points, _ = under("onnx-runtime", detector)
    for prepare in points.on_model:
        points.call(prepare, reader)
    with torch.no_grad():
        for _ in range(2):
            detector(images())
            reader(images())
    words = points.effects["onnx-runtime"]
    assert "WritesAView answered by ONNX Runtime" in words
    assert "leaves torch with .numpy()" in words


def test_what_is_still_to_come_is_said_in_words() -> None:
    model = modules.WritesAView().eval()
    points, _ = under("onnx-runtime", model, int8=True)
    assert points.preparing == {"onnx-runtime": "its first inputs were to be recorded"}
    with torch.no_grad():
        for _ in range(3):
            model(images())
    assert points.preparing["onnx-runtime"].startswith("3 of its inputs were recorded")


@pytest.mark.slow
def test_images_of_many_sizes_are_answered_by_one_program_in_int8_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    converted = counted_conversions(monkeypatch)
    torch.manual_seed(0)
    model = modules.WritesAView().eval()
    points, _ = under("openvino", model, int8=True)
    with torch.no_grad():
        for call in range(36):
            model(images(1, 32 + 4 * (call % 9)))
    assert converted == [("size",)]
    assert "9 shapes of inputs" in points.effects["openvino"]
    assert points.preparing == {}


def test_a_forward_that_is_called_past_the_modules_call_is_told_with_its_cure() -> None:
    points = Points()
    technique("openvino").apply(points, {})
    whole = Wraps(modules.UsesNumpy())

    def prepare(module: torch.nn.Module, _: object) -> None:
        for prepare in points.on_model:
            points.call(prepare, module)

    hook = whole.model.register_forward_pre_hook(prepare)
    with torch.no_grad():
        whole.forward(images())
        hook.remove()
        whole.forward(images())
    assert "calls Wraps's forward, past its own call" in points.refused["openvino"]
    assert "call model(x) in place of model.forward(x)" in points.refused["openvino"]
    assert "leaves torch with .numpy()" in points.refused["openvino"]
