"""What torch's ONNX exporter notes beside each node, and what of it belongs into a file.

It writes the lines of code that led to a node, with the paths of the machine, the classes around it
and the node of the traced graph: about a kilobyte a node, more than the weights of a small network.
"""

from __future__ import annotations

from typing import Any

KEPT = "pkg.torch.onnx.name_scopes"
"""The names of the modules around a node, by which a wrong layer is found."""


def drop_sources(program: Any) -> Any:
    """Forget all notes but the modules' names.

    Args:
        program: A `torch.onnx.ONNXProgram`; changed.
    """
    model = program.model
    for graph in (model.graph, *model.functions.values()):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            for key in [one for one in node.metadata_props if one != KEPT]:
                del node.metadata_props[key]
    return program


def drop_shapes(program: Any) -> Any:
    """Forget the shapes of what lies between inputs and outputs: runtimes infer them themselves.

    torch notes a 1 where a size that is free happened to be 1 in the example, and ONNX Runtime
    gives one buffer to two tensors of that shape.

    Args:
        program: A `torch.onnx.ONNXProgram`; changed.
    """
    graph = program.model.graph
    kept = {id(one) for one in (*graph.inputs, *graph.outputs)}
    for node in graph.all_nodes():
        for value in node.outputs:
            if id(value) not in kept:
                value.shape = None
    return program
