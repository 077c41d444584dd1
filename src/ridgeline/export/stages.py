"""The first layer whose output differs from the eager model's, where a format lets layers be seen.

A torch.export program is run node by node; an ONNX graph is given more outputs. Both carry the
module that each node came from, so a layer is compared after its last node. Layers that are called
more than once in a pass have no one output, and are left out.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.export.comparing import LEAST_SQNR_DB
from ridgeline.records.runtime_export import WrongStage
from ridgeline.runtimes import Artifact
from ridgeline.runtimes.capture import onnx_notes
from ridgeline.runtimes.capture.quiet import silence
from ridgeline.runtimes.capture.structure import flatten


def first_wrong_stage(
    module: nn.Module, artifact: Artifact, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> WrongStage | None:
    """Name the layer; None where the format hides its layers, or each of them agrees.

    Args:
        module: Eager, in float32.
        artifact: The same in another format.
        args: Of the call that differs.
        kwargs: Of the same.
    """
    seen = _READERS.get(artifact.runtime)
    if seen is None:
        return None
    wanted = _eager_outputs(module, args, kwargs)
    found = seen(artifact, flatten((args, dict(kwargs)))[0], set(wanted))
    before, compared = "", 0
    for name, one in wanted.items():
        other = found.get(name)
        if other is None or other.shape != one.shape:
            continue
        compared += 1
        sqnr = _sqnr_db(one, other)
        if sqnr < LEAST_SQNR_DB[artifact.precision]:
            return WrongStage(layer=name, sqnr_db=sqnr, before=before, compared=compared)
        before = name
    return None


def _sqnr_db(wanted: Tensor, found: Tensor) -> float:
    noise = float((wanted.double() - found.double()).square().sum())
    signal = float(wanted.double().square().sum())
    return 10 * math.log10(max(signal, 1e-30) / max(noise, 1e-30))


def _eager_outputs(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Output of each innermost module that is called once, in the order of the calls."""
    found: dict[str, Tensor] = {}
    again: set[str] = set()

    def keep(name: str) -> Callable[..., None]:
        def hook(_layer: nn.Module, _given: Any, output: Any) -> None:
            if name in found:
                again.add(name)
            elif isinstance(output, Tensor) and output.is_floating_point():
                found[name] = output.detach().clone()

        return hook

    handles = [
        layer.register_forward_hook(keep(name))
        for name, layer in module.named_modules()
        if name and not any(True for _ in layer.children())
    ]
    try:
        with torch.no_grad():
            module(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return {name: one for name, one in found.items() if name not in again}


def _of_program(artifact: Artifact, tensors: list[Tensor], layers: set[str]) -> dict[str, Tensor]:
    """Outputs of an exported program."""
    with silence():
        graph: Any = torch.export.load(artifact.path).module()
    found: dict[str, Tensor] = {}

    class Watching(torch.fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            value = super().run_node(n)
            stack = list((n.meta.get("nn_module_stack") or {}).values())
            if stack and isinstance(value, Tensor):
                found[_own(stack[-1][0])] = value  # the last node of a layer stands
            return value

    with torch.no_grad():
        Watching(graph).run(*tensors)
    return {name: one for name, one in found.items() if name in layers}


def _of_onnx(artifact: Artifact, tensors: list[Tensor], layers: set[str]) -> dict[str, Tensor]:
    """Outputs of an ONNX graph, which is given one more for each layer."""
    import onnx
    import onnxruntime

    model = onnx.load(str(artifact.path))
    last: dict[str, str] = {}
    for node in model.graph.node:
        scopes = {one.key: one.value for one in node.metadata_props}.get(onnx_notes.KEPT)
        for name in _paths(scopes):
            if name in layers:
                last[name] = node.output[0]
    there = {one.name for one in model.graph.output}
    for output in dict.fromkeys(last.values()):
        if output not in there:
            model.graph.output.append(onnx.ValueInfoProto(name=output))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {
        one.name: tensors[int(one.name.rpartition("_")[2])].contiguous().numpy()
        for one in session.get_inputs()
    }
    values = session.run(list(last.values()), feeds)
    return {name: torch.from_numpy(one) for name, one in zip(last, values, strict=True)}


def _paths(scopes: str | None) -> list[str]:
    return [] if not scopes else [_own(str(one)) for one in ast.literal_eval(scopes)]


def _own(path: str) -> str:
    """A module's path in the model itself: the capture calls it through one of its own.

    >>> _own("L['self'].module.model.stem"), _own("module.stem"), _own("stem")
    ('model.stem', 'stem', 'stem')
    """
    return path.removeprefix("L['self'].").removeprefix("module.")


_READERS: dict[str, Callable[[Artifact, list[Tensor], set[str]], dict[str, Tensor]]] = {
    "torch-export": _of_program,
    "onnx": _of_onnx,
}
