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

from ridgeline.compress.images.outputs import tensors_of
from ridgeline.compress.images.recognised import ONNX, PROGRAM
from ridgeline.compress.images.saved import export_to
from ridgeline.compress.vision.batches import Batch, inputs_of, part_of, rows_of
from ridgeline.compress.vision.nodes import RoundedTensor, load_operators
from ridgeline.compress.vision.onnx_program import Names
from ridgeline.compress.vision.quantise import QuantisedVision
from ridgeline.errors import InputError, MissingExtra, in_words

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
    names: Names | None = None,
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
        _save_onnx(found, example, out / ONNX, names)
    except InputError as error:
        missing.append(f"no {ONNX}: {error}")
    load_operators()
    module = _without_floats(found.module)
    export_to(module, part_of(example, slice(2)), out / PROGRAM)
    _save_weights(module, out / WEIGHTS)
    return missing


def _save_onnx(
    found: QuantisedVision,
    example: Batch,
    path: Path,
    names: Names | None,
) -> None:
    """Write ONNX with a free batch, or of one image where a batch's size decides its operators."""
    if rows_of(example) > 1:
        try:
            found.qdq_onnx(path, example, names=names)
            _check_one_image(found.module, OnnxModule(path, torch.get_num_threads()), example)
        except InputError:
            path.unlink(missing_ok=True)
        else:
            return
    found.qdq_onnx(path, part_of(example, slice(1)), dynamic=False, names=names)


def _check_one_image(module: nn.Module, file: OnnxModule, example: Batch) -> None:
    """Raise InputError where a file that two images made answers one image in another shape."""
    first = inputs_of(part_of(example, slice(1)))
    with torch.no_grad():
        wanted = [one.shape for one in tensors_of(module(*first))]
        try:
            made = [one.shape for one in tensors_of(file(*first))]
        except Exception as error:  # onnxruntime's exceptions share no class of their own
            raise InputError(f"{ONNX} takes no single image: {in_words(error)}") from error
    if made != wanted:
        raise InputError(f"{ONNX} answers a single image with {made}, PyTorch with {wanted}")


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
