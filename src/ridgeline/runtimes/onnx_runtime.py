"""ONNX Runtime takes the module as an ONNX graph, fuses it and runs it on the CPU.

The file comes from `torch.onnx.export(dynamo=True)`. int8 is static QuantizeLinear /
DequantizeLinear: weights int8 per channel, activations uint8 with the ranges of the calibration
calls (ONNX Runtime documentation, "Quantize ONNX models"). Products of such pairs are summed in 16
bits on CPUs without VNNI and overflow; there weights get 7 bits (`reduce_range`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ridgeline.runtimes import Artifact, RuntimeCard, not_installed

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from ridgeline.runtimes.capture.program import Captured

CARD = RuntimeCard(
    name="onnx",
    title="ONNX Runtime",
    file="model.onnx",
    pip="pip install 'ridgeline[export]'",
    precisions=("fp32", "int8"),
    needs=("onnx", "onnxscript", "onnxruntime"),
    source="https://onnxruntime.ai/docs/",
)

_DOT_PRODUCTS = {"avx_vnni", "avx512_vnni", "amx_int8", "dotprod", "i8mm"}
_MULTIPLIES = ["Conv", "ConvTranspose", "Gemm", "MatMul"]
"""What is quantised where there is attention: its softmax and its norms stay in float."""


def missing() -> str | None:
    """Why it cannot run here, in one line with the cure; None: it can."""
    return not_installed(CARD)


def write(captured: Captured, folder: Path, calls: Sequence[list[Tensor]]) -> list[str]:
    """Leave `model.onnx`; see `Runtime.write`."""
    from ridgeline.runtimes.capture.onnx_file import write_onnx

    write_onnx(captured, folder / CARD.file)
    return _quantise(captured, calls, folder / CARD.file) if calls else []


def _quantise(captured: Captured, calls: Sequence[list[Tensor]], path: Path) -> list[str]:
    """Put an int8 graph in the place of the float one; returns what a reader must know."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from ridgeline.runtimes.capture.onnx_file import input_name

    ready = path.with_name("ready.onnx")
    quant_pre_process(str(path), str(ready), skip_symbolic_shape=True)
    feeds = [{input_name(i): _array(tensor) for i, tensor in enumerate(call)} for call in calls]
    dot_products = _sums_in_32_bits()
    quantize_static(
        str(ready),
        str(path),
        SimpleNamespace(get_next=functools.partial(next, iter(feeds), None)),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        reduce_range=not dot_products,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=_MULTIPLIES if captured.has_attention else None,
    )
    ready.unlink()
    notes = [f"int8 ranges from {sum(len(call[0]) for call in calls)} samples"]
    if captured.has_attention:
        notes.append("softmax, norms and activation functions stay in float")
    if not dot_products:
        notes.append("weights in 7 bits: this CPU has no VNNI")
    return notes


def _sums_in_32_bits() -> bool:
    """Has this CPU int8 dot products that do not overflow on the way?"""
    from ridgeline.hardware.machine import this_machine

    return bool(_DOT_PRODUCTS & set(this_machine().cpu.isa))


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = tensor.contiguous().numpy()
    return found


def load(artifact: Artifact, *, threads: int) -> Callable[..., Any]:
    """A session that is called as the module is; see `Runtime.load`."""
    import onnxruntime
    import torch

    from ridgeline.runtimes.capture.answering import Answering
    from ridgeline.runtimes.capture.onnx_file import index_of

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(artifact.path), options, providers=["CPUExecutionProvider"]
    )
    taken = [(one.name, index_of(one.name)) for one in session.get_inputs()]

    def run(tensors: list[Tensor]) -> list[Tensor]:
        found = session.run(None, {name: _array(tensors[index]) for name, index in taken})
        return [torch.from_numpy(array) for array in found]

    return Answering(artifact, run)
