"""TensorRT takes the module as an ONNX graph and builds an engine for the GPU of this machine.

The network is strongly typed, as in TensorRT 11 all are: float16 is what the graph has in float16,
and float32 is float32, without TF32 (TensorRT documentation, "Python API"; "Migrating Python Code
from TensorRT 10.x to 11.x"). An engine belongs to the TensorRT and the kind of GPU that it was
built with.
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
    name="tensorrt",
    title="TensorRT",
    file="model.engine",
    pip="pip install tensorrt onnx onnxscript",
    precisions=("fp32", "fp16"),
    needs=("tensorrt", "onnx", "onnxscript"),
    source="https://docs.nvidia.com/deeplearning/tensorrt/",
    in_graph=("fp16",),
)

_BATCHES = 4
_SIZES = 2
"""A free batch reaches so many examples' worth at most; height and width half and twice theirs."""


def missing() -> str | None:
    """Why it cannot run here, in one line with the cure; None: it can."""
    from ridgeline.hardware.accelerators import find_gpus

    lacking = not_installed(CARD)
    if lacking is not None:
        return lacking
    gpus, notes = find_gpus()
    if gpus:
        return None
    why = f" ({notes[0]})" if notes else ""
    return f"an NVIDIA GPU with its driver is not installed here, which TensorRT needs{why}"


def write(captured: Captured, folder: Path, calls: Sequence[list[Tensor]]) -> list[str]:  # noqa: ARG001
    """Leave `model.engine`; see `Runtime.write`. What is free has bounds, in the notes."""
    from ridgeline.runtimes.capture.onnx_file import write_onnx

    graph = folder / "graph"
    graph.mkdir()
    write_onnx(captured, graph / "model.onnx")
    notes = _build(captured, graph / "model.onnx", folder / CARD.file)
    for path in graph.iterdir():
        path.unlink()
    graph.rmdir()
    return notes


def _build(captured: Captured, onnx: Path, path: Path) -> list[str]:
    """Write the engine; returns what a reader must know."""
    import tensorrt  # type: ignore[import-not-found,import-untyped,unused-ignore]

    from ridgeline.runtimes.capture.onnx_file import index_of

    logger = tensorrt.Logger(tensorrt.Logger.ERROR)
    builder = tensorrt.Builder(logger)
    typed = 1 << int(tensorrt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(typed)
    parser = tensorrt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(onnx)):
        said = "; ".join(str(parser.get_error(i)) for i in range(parser.num_errors))
        raise RuntimeError(f"TensorRT does not read the graph: {said}")
    config = builder.create_builder_config()
    config.clear_flag(tensorrt.BuilderFlag.TF32)
    profile = builder.create_optimization_profile()
    notes = []
    for place in range(network.num_inputs):
        taken = network.get_input(place)
        example = list(captured.tensors[index_of(taken.name)].shape)
        low, high = bounds(list(taken.shape), example)
        if low != high:
            profile.set_shape(taken.name, low, example, high)
            notes.append(f"{taken.name} takes {low} to {high}")
    if notes:
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise RuntimeError("TensorRT found no kernels for the graph")
    path.write_bytes(engine)
    return notes


def bounds(declared: list[int], example: list[int]) -> tuple[list[int], list[int]]:
    """Least and largest shape of an input, around the example's.

    Args:
        declared: Its shape in the graph: -1 where it is free.
        example: Its shape in the example; the batch comes first.

    >>> bounds([-1, 3, -1, -1], [2, 3, 64, 64])
    ([1, 3, 32, 32], [8, 3, 128, 128])
    """
    low, high = list(example), list(example)
    for place, size in enumerate(declared):
        if size == -1:
            low[place] = 1 if place == 0 else example[place] // _SIZES
            high[place] = example[place] * (_BATCHES if place == 0 else _SIZES)
    return low, high


def load(artifact: Artifact, *, threads: int) -> Callable[..., Any]:  # noqa: ARG001
    """The engine on the current GPU; see `Runtime.load`.

    It answers on the device that the first input lies on. On the GPU a call returns before the
    answer is there, as PyTorch's calls do.
    """
    import tensorrt
    import torch

    from ridgeline.errors import InputError
    from ridgeline.runtimes.capture.answering import Answering
    from ridgeline.runtimes.capture.onnx_file import index_of

    deserialiser = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.ERROR))
    engine = deserialiser.deserialize_cuda_engine(artifact.path.read_bytes())
    if engine is None:
        raise InputError(
            f"{artifact.path}: built by another TensorRT or for another GPU; export it here again"
        )
    context = engine.create_execution_context()
    names = [engine.get_tensor_name(place) for place in range(engine.num_io_tensors)]
    takes = [n for n in names if engine.get_tensor_mode(n) == tensorrt.TensorIOMode.INPUT]
    gives = [n for n in names if n not in takes]
    dtypes = {n: getattr(torch, _TORCH[engine.get_tensor_dtype(n).name]) for n in gives}

    def run(tensors: list[Tensor]) -> list[Tensor]:
        given = [tensor.cuda() for tensor in tensors]
        for name in takes:
            tensor = given[index_of(name)]
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise InputError(f"called with {list(tensor.shape)}; {'; '.join(artifact.notes)}")
            context.set_tensor_address(name, tensor.data_ptr())
        found = [
            torch.empty(tuple(context.get_tensor_shape(n)), dtype=dtypes[n], device="cuda")
            for n in gives
        ]
        for name, tensor in zip(gives, found, strict=True):
            context.set_tensor_address(name, tensor.data_ptr())
        if not context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("TensorRT could not run the engine")
        return [tensor.to(tensors[0].device) for tensor in found]

    return Answering(artifact, run)


_TORCH = {
    "FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT32": "int32",
    "INT64": "int64", "BOOL": "bool", "INT8": "int8", "UINT8": "uint8",
}  # fmt: skip
"""TensorRT's names of dtypes → torch's."""
