"""What is left of a model's operators once a runtime has fused them, by kind of kernel.

Where from: ONNX Runtime's graph after its own optimisation, OpenVINO's graph as it executes, the
calls in AOTInductor's generated code, the operators of a torch.export program.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ridgeline.runtimes import Artifact
from ridgeline.runtimes.capture.quiet import silence

_AOTI_CALL = re.compile(
    r"^\s*(?:AOTI_TORCH_ERROR_CODE_CHECK\(\s*aoti_torch_(?:cpu_|cuda_)?(?:_?mkldnn_)?(\w+?)"
    r"|(?:kernels\.)?(?:call_)?(cpp_fused_\w+|triton_\w+?_fused_\w+))\(",
    re.MULTILINE,
)
_KEPT_BY_AOTI = re.compile(
    r"^(empty|create|delete|get_|as_strided|reinterpret|clone_|proxy|new_|assign|device|dtype|"
    r"layout|zero_|copy_|grad_mode|item|tensor_copy)"
)
"""Calls of AOTInductor that compute nothing."""


def kernels(artifact: Artifact) -> dict[str, int] | None:
    """Kind of kernel → how many; None where the format does not say."""
    counted = _COUNTERS.get(artifact.runtime)
    return None if counted is None else dict(counted(artifact).most_common())


def _onnx(artifact: Artifact) -> Counter[str]:
    import onnx
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # that such a file suits this machine alone is known
        options.optimized_model_filepath = str(path)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        onnxruntime.InferenceSession(
            str(artifact.path), options, providers=["CPUExecutionProvider"]
        )
        return Counter(node.op_type for node in onnx.load(path).graph.node)


def _openvino(artifact: Artifact) -> Counter[str]:
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(core.read_model(artifact.path), "CPU")
    kinds: Counter[str] = Counter()
    for node in compiled.get_runtime_model().get_ordered_ops():
        kind = str(node.get_rt_info()["layerType"].value)
        if kind not in ("Input", "Output", "Const", "Parameter", "Result", "Constant"):
            kinds[kind] += 1
    return kinds


def _aoti(artifact: Artifact) -> Counter[str]:
    kinds: Counter[str] = Counter()
    with zipfile.ZipFile(artifact.path) as package:
        for name in package.namelist():
            if name.endswith(".wrapper.cpp"):
                code = package.read(name).decode("utf-8", "replace")
                for extern, fused in _AOTI_CALL.findall(code.partition("::run_impl(")[2]):
                    if fused:
                        kinds[fused.split("_fused_")[0] + "_fused"] += 1
                    elif not _KEPT_BY_AOTI.match(extern):
                        kinds[extern] += 1
    return kinds


def _program(artifact: Artifact) -> Counter[str]:
    import torch

    with silence():
        graph = torch.export.load(artifact.path).graph
    return Counter(
        str(node.target).removeprefix("aten.").partition(".")[0]
        for node in graph.nodes
        if node.op == "call_function"
    )


_COUNTERS: dict[str, Callable[[Artifact], Counter[str]]] = {
    "onnx": _onnx,
    "openvino": _openvino,
    "aoti": _aoti,
    "torch-export": _program,
}
