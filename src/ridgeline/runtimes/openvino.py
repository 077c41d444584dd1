"""OpenVINO takes the module as a graph of its own, with int8 by NNCF.

The precision it computes in is said, never left to its default: on a CPU that has bfloat16 it
would round a float32 model (OpenVINO documentation, "Precision Control"). int8 takes weights per
channel and the ranges of activations from the calibration calls, with bias correction; where
attention is found NNCF's transformer scheme keeps norms and softmax in float and smooths what goes
into matmuls (Xiao et al., "SmoothQuant", 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.runtimes import Artifact, RuntimeCard, not_installed

if TYPE_CHECKING:
    from torch import Tensor

    from ridgeline.runtimes.capture.program import Captured

CARD = RuntimeCard(
    name="openvino",
    title="OpenVINO",
    file="model.xml",
    pip="pip install 'ridgeline[export]'",
    precisions=("fp32", "bf16", "int8"),
    needs=("openvino", "nncf"),
    source="https://docs.openvino.ai/",
)

_HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}
"""Precision → what is left in floating point is computed in this."""


def missing() -> str | None:
    """Why it cannot run here, in one line with the cure; None: it can."""
    return not_installed(CARD)


def write(captured: Captured, folder: Path, calls: Sequence[list[Tensor]]) -> list[str]:
    """Leave `model.xml` and `model.bin`; see `Runtime.write`."""
    import openvino  # type: ignore[import-untyped]

    model, notes = _converted(captured, folder), list[str]()
    if calls:
        model, notes = _quantised(model, captured, calls)
    openvino.save_model(model, folder / CARD.file, compress_to_fp16=False)
    return notes


def _converted(captured: Captured, folder: Path) -> Any:
    """The module as an OpenVINO model.

    Raises:
        ExportError: Operators that OpenVINO does not have.
    """
    import openvino
    from openvino.frontend import OpConversionFailure  # type: ignore[import-untyped]

    from ridgeline.runtimes.capture.blame import blame_operator, keep_log, operator_name
    from ridgeline.runtimes.capture.inverses import without_small_inverses
    from ridgeline.runtimes.capture.wide_integers import widen_counts

    program = without_small_inverses(captured.program)
    try:
        return openvino.convert_model(program)
    except OpConversionFailure:
        written_out = program.run_decompositions()
        widen_counts(written_out)
    try:  # what it lacks PyTorch may write in other operators
        return openvino.convert_model(written_out)
    except OpConversionFailure as error:
        said = str(error)
        nodes = [*written_out.graph.nodes, *program.graph.nodes]
        calls = [node for node in nodes if hasattr(node.target, "_schema")]
        lacking = [node for node in calls if f"{operator_name(node)}" in said]
        if not lacking:
            raise
        log = keep_log(folder, error, said)
        raise blame_operator(lacking[0], captured.program, log, CARD.title) from error


def _quantised(
    model: Any, captured: Captured, calls: Sequence[list[Tensor]]
) -> tuple[Any, list[str]]:
    import nncf  # type: ignore[import-untyped]

    dataset = nncf.Dataset([[tensor.numpy() for tensor in call] for call in calls])
    attention = captured.has_attention
    quantised = nncf.quantize(
        model,
        dataset,
        preset=nncf.QuantizationPreset.MIXED,
        model_type=nncf.ModelType.TRANSFORMER if attention else None,
        subset_size=len(calls),
    )
    notes = [f"int8 ranges from {sum(len(call[0]) for call in calls)} samples"]
    if attention:
        notes.append("softmax and norms stay in float (NNCF's transformer scheme)")
    return quantised, notes


def load(artifact: Artifact, *, threads: int) -> Callable[..., Any]:
    """A compiled model that is called as the module is; see `Runtime.load`."""
    import openvino
    import torch

    from ridgeline.runtimes.capture.answering import Answering

    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(artifact.path),
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": _HINTS[artifact.precision],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
        },
    )
    request = compiled.create_infer_request()
    outputs = list(compiled.outputs)

    def run(tensors: list[Tensor]) -> list[Tensor]:
        arrays = [tensor.numpy() for tensor in tensors]
        found = request.infer(arrays, share_inputs=True)
        return [torch.from_numpy(found[one]) for one in outputs]

    return Answering(artifact, run)
