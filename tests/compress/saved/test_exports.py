"""ONNX files and torch.export packages compute what PyTorch computes."""

from __future__ import annotations

import collections
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from tests.checkpoints.tiny_llama import IDS, logits, saved, tiny, write

from ridgeline.compress.saved import onnx_model, torch_export
from ridgeline.compress.saved.whole_model import whole_model
from ridgeline.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("source"), num_hidden_layers=1)


def onnx_logits(path: Path) -> torch.Tensor:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*onnx_model.EXACT)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {"input_ids": IDS.numpy()})[0])


@pytest.mark.parametrize("name", ["w3a16-g32-asym", "w8a8", "fp8-static", "mxfp4a16", "nvfp4a16"])
def test_a_whole_model_computes_with_its_levels(name: str, source: Path, tmp_path: Path) -> None:
    expected = logits(write(source, tmp_path / "out", name))
    with torch.no_grad():
        found = whole_model(tmp_path / "out", torch.float32)(IDS)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["w8a16-channel", "w4a16-g32-asym", "w8a8"])
def test_other_integers_as_onnx_equal_pytorch(name: str, source: Path, tmp_path: Path) -> None:
    expected = logits(write(source, tmp_path / "out", name))
    onnx_model.export(tmp_path / "out", tmp_path / "model.onnx")
    found = onnx_logits(tmp_path / "model.onnx")
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.slow
def test_a_dense_model_as_onnx_equals_pytorch(source: Path, tmp_path: Path) -> None:
    onnx_model.export(source, tmp_path / "model.onnx")
    expected = logits(tiny(num_hidden_layers=1))
    found = onnx_logits(tmp_path / "model.onnx")
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.slow
def test_int8_weights_and_inputs_are_qdq_and_equal_pytorch(source: Path, tmp_path: Path) -> None:
    expected = logits(write(source, tmp_path / "out", "w8a8-static"))
    onnx_model.export(tmp_path / "out", tmp_path / "model.onnx")
    kinds = collections.Counter(
        node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node
    )
    # Four different inputs (q, k and v share one), and seven weights.
    assert (kinds["QuantizeLinear"], kinds["DequantizeLinear"]) == (4, 11)
    found = onnx_logits(tmp_path / "model.onnx")
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["w4a16-g32", pytest.param("mxfp4", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("default:The given buffer is not writable")  # torch 2.11 itself
def test_a_package_equals_pytorch(name: str, source: Path, tmp_path: Path) -> None:
    write(source, tmp_path / "out", name)
    torch_export.export(tmp_path / "out", tmp_path / "model.pt2")
    with torch.no_grad():
        expected = whole_model(tmp_path / "out")(IDS)
        found = torch.export.load(tmp_path / "model.pt2").module()(IDS)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_floats_of_few_bits_are_not_exported_to_onnx(source: Path, tmp_path: Path) -> None:
    write(source, tmp_path / "out", "nvfp4a16")
    with pytest.raises(InputError, match="weights as nvfp4 are not exported to ONNX"):
        onnx_model.export(tmp_path / "out", tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
