"""Directories of quantised vision models: ONNX for int8 kernels, a program, levels and scales.

model.onnx           QuantizeLinear and DequantizeLinear; what is judged and timed
model.pt2            the same numbers in PyTorch; needs torch's quantized_decomposed operators
weights.safetensors  levels (int8) and scales of each layer, scale and zero point of each tensor
preprocess.json      how pictures become what the model takes
ledger.json          what it cost
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.compress.images.saved import PROGRAM, is_the_same
from ridgeline.compress.saved.torch_export import package
from ridgeline.compress.vision.batches import Batch, free_batch, inputs_of, part_of, rows_of
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
        self.inputs = [one.name for one in self.session.get_inputs()]
        self.version = str(onnxruntime.__version__)

    def forward(self, *images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The outputs of the file; of one output the tensor alone."""
        given = {
            name: (one.float() if one.is_floating_point() else one).cpu().numpy()
            for name, one in zip(self.inputs, images, strict=True)
        }
        answers = tuple(torch.from_numpy(one) for one in self.session.run(None, given))
        return answers[0] if len(answers) == 1 else answers


def save_quantised(
    found: QuantisedVision,
    example: Batch,
    out: Path,
    names: tuple[Sequence[str], Sequence[str]] | None = None,
) -> list[str]:
    """Write a quantised model into a new folder.

    Args:
        found: The model.
        example: Real images [2 or more, channels, height, width]; 1 where the model takes no more.
        out: Must not exist.
        names: Of the inputs and outputs in the ONNX file.

    Returns:
        What could not be written, and why: a scheme may have no ONNX form.
    """
    out.mkdir(parents=True)
    missing: list[str] = []
    try:
        found.qdq_onnx(out / ONNX, example, rows_of(example) > 1, names=names)
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


def _save_program(module: nn.Module, example: Batch, path: Path) -> None:
    def check(loaded: nn.Module) -> None:
        with torch.no_grad():
            wanted, made = module(*inputs_of(small)), loaded(*inputs_of(small))
        if not is_the_same(wanted, made):
            raise RidgelineError(f"{path} answers otherwise than PyTorch; nothing was written")

    small = part_of(example, slice(2))
    free = free_batch(module, small, torch.export.Dim.DYNAMIC) if rows_of(small) > 1 else None
    package("--scheme", module, inputs_of(small), free, path, check)


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
