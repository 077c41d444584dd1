"""The layers of a traced graph that have multiplications, with their names, weights and inputs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from torch import Tensor, fx

from ridgeline.compress.vision.batches import Batch, rows_of
from ridgeline.compress.vision.folding import CONVOLUTIONS, TRANSPOSED
from ridgeline.compress.vision.graph import run_watched
from ridgeline.compress.vision.operators import argument, constant_of, module_of, operator_of
from ridgeline.compress.vision.plan import LayerKind

_MATMULS = {"matmul", "bmm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionLayer:
    """One call of a convolution, a linear layer or a product of two activations."""

    name: str
    kind: LayerKind
    node: fx.Node
    inputs: tuple[fx.Node, ...]
    """What is rounded with a range: one tensor, or both operands of a product."""
    weight: fx.Node | None
    bias: fx.Node | None
    axis: int
    """The dimension of the weight that holds output channels (within a group, if transposed)."""
    groups: int
    macs: int
    """Multiply-accumulates for one image."""

    @property
    def convolves(self) -> bool:
        """Whether runtimes want its output in integers too."""
        return self.kind in {"convolution", "transposed convolution"}


def find_layers(graph: fx.GraphModule, batch: Batch) -> tuple[VisionLayer, ...]:
    """All layers in the order in which they run.

    Args:
        graph: From `traced`.
        batch: Images to learn the shapes from; one is enough.
    """
    shapes: dict[fx.Node, tuple[int, ...]] = {}

    def note(node: fx.Node, value: object) -> None:
        if isinstance(value, Tensor):
            shapes[node] = tuple(value.shape)

    run_watched(graph, [batch], note)
    seen: Counter[str] = Counter()
    found = []
    for node in graph.graph.nodes:
        layer = _layer(graph, node, shapes, rows_of(batch))
        if layer is None:
            continue
        seen[layer.name] += 1
        if seen[layer.name] > 1:
            layer = _renamed(layer, f"{layer.name}#{seen[layer.name]}")
        found.append(layer)
    return tuple(found)


def _renamed(layer: VisionLayer, name: str) -> VisionLayer:
    fields = {one: getattr(layer, one) for one in VisionLayer.__slots__}
    return VisionLayer(**{**fields, "name": name})


def _layer(
    graph: fx.GraphModule, node: fx.Node, shapes: dict[fx.Node, tuple[int, ...]], images: int
) -> VisionLayer | None:
    operator = operator_of(node)
    if operator in _MATMULS:
        left, right = node.args[:2]
        assert isinstance(left, fx.Node)
        assert isinstance(right, fx.Node)
        depth = shapes[left][-1]
        return VisionLayer(
            name=_name(node), kind="matmul", node=node, inputs=(left, right), weight=None,
            bias=None, axis=0, groups=1, macs=math.prod(shapes[node]) * depth // images,
        )  # fmt: skip
    if operator not in CONVOLUTIONS | TRANSPOSED | {"linear"}:
        return None
    weight_node, bias = node.args[1], argument(node, 2, "bias")
    weight = constant_of(graph, weight_node)
    if weight is None:
        return None
    transposed = operator in TRANSPOSED
    groups = 1 if operator == "linear" else argument(node, 6, "groups", 1)
    outputs = math.prod(shapes[node]) // images
    if transposed:
        inputs = math.prod(shapes[node.args[0]]) // images
        macs = inputs * math.prod(weight.shape[1:])
    else:
        macs = outputs * math.prod(weight.shape[1:])
    kind: LayerKind = "linear" if operator == "linear" else "convolution"
    return VisionLayer(
        name=_name(node, weight_node), kind="transposed convolution" if transposed else kind,
        node=node, inputs=(node.args[0],), weight=weight_node, bias=bias,
        axis=1 if transposed else 0, groups=groups, macs=macs,
    )  # fmt: skip


def _name(node: fx.Node, weight: fx.Node | None = None) -> str:
    """The path of the module whose weight is read, or of the one that calls."""
    if weight is not None:
        return module_of(weight) or str(weight.target)
    stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    path = (stack[-1] if stack else "").removeprefix("L['self'].").strip(".")
    return f"{path}.matmul" if path else node.name
