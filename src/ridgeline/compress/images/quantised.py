"""Directories of quantised vision models: ONNX for int8 kernels, a program, levels and scales.

model.onnx           QuantizeLinear and DequantizeLinear; what is judged and timed
model.pt2            the same numbers in PyTorch; needs torch's quantized_decomposed operators
weights.safetensors  levels (int8) and scales of each layer, scale and zero point of each tensor
preprocess.json      how pictures become what the model takes
ledger.json          what it cost
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.compress.images.saved import PROGRAM
from ridgeline.compress.saved.torch_export import package
from ridgeline.compress.vision.nodes import RoundedTensor, load_operators
from ridgeline.compress.vision.quantise import QuantisedVision
from ridgeline.errors import InputError, MissingExtra, RidgelineError, in_words

ONNX = "model.onnx"
WEIGHTS = "weights.safetensors"
SAME_ANSWERS = 0.9
"""Least share of equal answers of the ONNX file and the simulation, on which integers round."""


class OnnxModule(nn.Module):
    """An ONNX file called as the module that it was made from."""

    def __init__(self, path: Path, threads: int) -> None:
        super().__init__()
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtra("onnxruntime", "compress") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        try:
            self.session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's exceptions share no class of their own
            raise InputError(f"{path}: ONNX Runtime cannot load it ({in_words(error)})") from None
        self.input = self.session.get_inputs()[0].name
        self.version = str(onnxruntime.__version__)

    def forward(self, images: Tensor) -> Tensor:
        """The first output of the file."""
        answer = self.session.run(None, {self.input: images.float().cpu().numpy()})[0]
        return torch.from_numpy(answer)


def save_quantised(found: QuantisedVision, example: Tensor, out: Path) -> list[str]:
    """Write a quantised model into a new folder.

    Args:
        found: The model.
        example: Real images [2 or more, channels, height, width].
        out: Must not exist.

    Returns:
        What could not be written, and why: a scheme may have no ONNX form.
    """
    out.mkdir(parents=True)
    missing: list[str] = []
    try:
        found.qdq_onnx(out / ONNX, example)
    except InputError as error:
        missing.append(f"no {ONNX}: {error}")
    load_operators()
    module = _without_floats(found.module)
    _save_program(module, example, out / PROGRAM)
    _save_weights(module, out / WEIGHTS)
    return missing


def _without_floats(module: nn.Module) -> nn.Module:
    """A copy without the tensors that its graph reads no more: the weights before rounding."""
    own = copy.deepcopy(module)
    if not isinstance(own, torch.fx.GraphModule):
        return own
    read = {node.target for node in own.graph.nodes if node.op in ("get_attr", "call_module")}
    for name in [*dict(own.named_parameters()), *dict(own.named_buffers())]:
        if not any(name == one or name.startswith(f"{one}.") for one in read):
            holder, _, attribute = name.rpartition(".")
            delattr(own.get_submodule(holder), attribute)
    return own


def _save_program(module: nn.Module, example: Tensor, path: Path) -> None:
    def check(loaded: nn.Module) -> None:
        with torch.no_grad():
            wanted, made = module(example[:2]).argmax(1), loaded(example[:2]).argmax(1)
        if not torch.equal(wanted, made):
            raise RidgelineError(f"{path} answers otherwise than PyTorch; nothing was written")

    free = ({0: torch.export.Dim.DYNAMIC},)
    package("--scheme", module, example[:2], free, path, check)


def _save_weights(module: nn.Module, path: Path) -> None:
    """Levels and scales, with names as the model's layers."""
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {
        name: one.contiguous()
        for name, one in module.state_dict().items()
        if isinstance(one, Tensor)
    }
    for name, one in module.named_modules():
        if isinstance(one, RoundedTensor) and not one.form.dynamic:
            tensors[f"{name}.scale"] = torch.tensor(one.scale)
            tensors[f"{name}.zero"] = torch.tensor(one.zero, dtype=torch.int32)
    save_file({name: one.clone() for name, one in tensors.items()}, path)
