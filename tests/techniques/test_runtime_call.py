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


@pytest.mark.slow
def test_the_script_gets_its_answers_at_every_shape_and_its_call_back() -> None:
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
    assert points.preparing == set()
    assert "int8 needs 90" in points.refused["onnx-runtime"]


def test_what_the_script_raises_is_the_scripts_own() -> None:
    model = modules.WritesAView().eval()
    points, _ = under("onnx-runtime", model)
    with torch.no_grad(), pytest.raises(RuntimeError, match="expected input"):
        model(torch.rand(2, 5, 64, 64))
    assert "in PyTorch itself" in points.refused["onnx-runtime"]
