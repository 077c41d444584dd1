"""ONNX Runtime: the module as an ONNX graph, fused and run on the CPU.

The file comes from `torch.onnx.export(dynamo=True)`. int8 is static QuantizeLinear /
DequantizeLinear: weights int8 per channel, activations uint8 with the ranges of the calibration
calls (ONNX Runtime documentation, "Quantize ONNX models"). Products of such pairs are summed in 16
bits on CPUs without VNNI and overflow; there weights get 7 bits (`reduce_range`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.runtimes import Artifact, Call, Free, Precision, RuntimeCard

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from ridgeline.runtimes.capture.program import Captured

CARD = RuntimeCard(
    name="onnx",
    title="ONNX Runtime",
    suffix=".onnx",
    pip="pip install 'ridgeline[export]'",
    precisions=("fp32", "int8"),
    needs=("onnx", "onnxscript", "onnxruntime"),
    source="https://onnxruntime.ai/docs/",
)

FILE = "model.onnx"
_LARGEST_BYTES = 1_900_000_000
"""The most bytes of weights inside of the file: a protobuf message ends at 2 GiB."""
_DOT_PRODUCTS = {"avx_vnni", "avx512_vnni", "amx_int8", "dotprod", "i8mm"}
_MULTIPLIES = ["Conv", "ConvTranspose", "Gemm", "MatMul"]
"""What is quantised where there is attention: its softmax and its norms stay in float."""


def missing() -> str | None:
    """Why it cannot run here, in one line with the cure; None: it can."""
    from ridgeline.runtimes.capture.writing import not_installed

    return not_installed(CARD)


def convert(
    module: nn.Module,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    folder: Path,
    *,
    precision: Precision = "fp32",
    calibration: Sequence[Call] = (),
    dynamic: tuple[Free, ...] = ("batch",),
) -> Artifact:
    """Write `model.onnx`; see `Runtime.convert`."""
    from ridgeline.runtimes.capture.program import capture, flat_calls
    from ridgeline.runtimes.capture.writing import (
        check_dtypes,
        check_precision,
        conversion,
        write_artifact,
    )

    check_precision(CARD, precision)
    captured = capture(module, inputs, kwargs, dynamic=dynamic, folder=folder)
    check_dtypes(CARD, captured)
    notes: list[str] = []
    calls = flat_calls(captured, calibration) if precision == "int8" else []
    with conversion(folder, CARD, captured):
        _write(captured, folder / FILE)
        if precision == "int8":
            notes = _quantise(captured, calls, folder / FILE)
    return write_artifact(folder, CARD, captured, precision, FILE, notes)


def _write(captured: Captured, path: Path) -> None:
    import torch

    program = torch.onnx.export(
        captured.program,
        dynamo=True,
        verbose=False,
        input_names=[_input(i) for i in range(len(captured.tensors))],
    )
    assert program is not None
    weights = sum(value.nbytes for value in captured.program.state_dict.values())
    program.save(path, external_data=weights > _LARGEST_BYTES)


def _input(index: int) -> str:
    return f"input_{index}"


def _quantise(captured: Captured, calls: list[list[Tensor]], path: Path) -> list[str]:
    """Put an int8 graph in the place of the float one; returns what a reader must know."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready = path.with_name("ready.onnx")
    quant_pre_process(str(path), str(ready), skip_symbolic_shape=True)
    dot_products = _sums_in_32_bits()
    quantize_static(
        str(ready),
        str(path),
        _Reader(calls),
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


class _Reader:
    """Calibration inputs as ONNX Runtime's quantiser reads them."""

    def __init__(self, calls: list[list[Tensor]]) -> None:
        self._feeds = iter(
            [{_input(i): _array(tensor) for i, tensor in enumerate(call)} for call in calls]
        )

    def get_next(self) -> dict[str, np.ndarray[Any, Any]] | None:
        """The inputs of the next call; None: there are no more."""
        return next(self._feeds, None)


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = tensor.contiguous().numpy()
    return found


def load(artifact: Artifact, *, threads: int) -> Callable[..., Any]:
    """A session that is called as the module is; see `Runtime.load`."""
    import onnxruntime
    import torch

    from ridgeline.runtimes.capture.answering import Answering

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(artifact.path), options, providers=["CPUExecutionProvider"]
    )
    taken = [(one.name, int(one.name.rpartition("_")[2])) for one in session.get_inputs()]

    def run(tensors: list[Tensor]) -> list[Tensor]:
        found = session.run(None, {name: _array(tensors[index]) for name, index in taken})
        return [torch.from_numpy(array) for array in found]

    return Answering(artifact, run)
