"""A traced graph made simpler without changing what it computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ridgeline.compress.vision.operators import (
    argument,
    constant_of,
    module_of,
    operator_of,
    placed_constant,
)
from ridgeline.kernels.fake_quantisation.folding import BatchStatistics, fold

CONVOLUTIONS = {"conv1d", "conv2d", "conv3d"}
TRANSPOSED = {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
_BATCH_NORMS = {"batch_norm", "_native_batch_norm_legit_no_training"}
_VIEWS = {"view", "_unsafe_view"}
_IDENTITIES = {"dropout", "alias", "detach", "clone", "contiguous", "lift_fresh_copy"}


def remove_identities(graph: fx.GraphModule) -> None:
    """Remove what inference does not do: dropout, copies, checks of the input.

    Without a copy its reader may meet another layout, in which it cannot view but must reshape.
    """
    for node in list(graph.graph.nodes):
        if operator_of(node) in _VIEWS:
            node.target = torch.ops.aten.reshape.default
        checks = node.op == "call_module" and str(node.target) == "_guards_fn"
        if checks and not node.users:
            graph.graph.erase_node(node)
        elif operator_of(node) in _IDENTITIES:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def fold_batch_norms(graph: fx.GraphModule) -> None:
    """Fold batch normalisation into the convolution or linear layer whose only reader it is."""
    for node in list(graph.graph.nodes):
        if operator_of(node) not in _BATCH_NORMS:
            continue
        layer = node.args[0]
        if len(layer.users) != 1 or not _takes_batch_norm(layer):
            continue
        weight = constant_of(graph, layer.args[1])
        statistics = _statistics(graph, node)
        if weight is None or statistics is None:
            continue
        bias = constant_of(graph, argument(layer, 2, "bias"))
        transposed = operator_of(layer) in TRANSPOSED
        groups = argument(layer, 6, "groups", 1) if transposed else 1
        new, offset = fold(weight, bias, statistics, transposed=transposed, groups=groups)
        _give(graph, layer, new, offset)
        _replace_result(graph, node, layer)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _takes_batch_norm(layer: fx.Node) -> bool:
    name = operator_of(layer)
    # Of a linear layer's result [batch, out] the channels of BatchNorm1d are the last dim.
    return name in CONVOLUTIONS | TRANSPOSED or (
        name == "linear" and len(layer.meta["val"].shape) == 2
    )


def _statistics(graph: fx.GraphModule, node: fx.Node) -> BatchStatistics | None:
    if operator_of(node) == "batch_norm":
        _, gain, offset, mean, variance, training, _, epsilon = node.args[:8]
        if training:
            return None
    else:
        _, gain, offset, mean, variance, _, epsilon = node.args[:7]
    found = [constant_of(graph, one) for one in (mean, variance, gain, offset)]
    if found[0] is None or found[1] is None:
        return None
    return BatchStatistics(
        mean=found[0], variance=found[1], gain=found[2], offset=found[3], epsilon=float(epsilon)
    )


def _give(graph: fx.GraphModule, layer: fx.Node, weight: Tensor, bias: Tensor) -> None:
    """Let a layer read another weight and bias."""
    module = module_of(layer.args[1])  # type: ignore[arg-type]
    new = placed_constant(graph, weight, module, "folded_weight", layer)
    offset = placed_constant(graph, bias, module, "folded_bias", layer)
    arguments = list(layer.args)
    arguments[1:3] = [new, offset]
    layer.args = tuple(arguments)
    layer.kwargs = {key: one for key, one in layer.kwargs.items() if key not in {"bias", "weight"}}


def _replace_result(graph: fx.GraphModule, node: fx.Node, by: fx.Node) -> None:
    """Whoever read a batch normalisation reads the layer; the operator may give a tuple."""
    if operator_of(node) == "batch_norm":
        node.replace_all_uses_with(by)
        graph.graph.erase_node(node)
        return
    for reader in list(node.users):
        if reader.args[1] == 0:
            reader.replace_all_uses_with(by)
        graph.graph.erase_node(reader)
    graph.graph.erase_node(node)


def split_attention(graph: fx.GraphModule) -> None:
    """Write fused attention as two products and a softmax, so that the products can be rounded.

    Left whole where it is causal, shares keys between heads, or drops out.
    """
    aten = torch.ops.aten
    for node in list(graph.graph.nodes):
        if operator_of(node) != "scaled_dot_product_attention":
            continue
        query, key, value = node.args[:3]
        mask, dropped = argument(node, 3, "attn_mask"), argument(node, 4, "dropout_p", 0.0)
        causal = argument(node, 5, "is_causal", otherwise=False)
        shared = node.kwargs.get("enable_gqa", False)
        boolean = mask is not None and mask.meta["val"].dtype == torch.bool
        if causal or shared or boolean or dropped:
            continue
        width = query.meta["val"].shape[-1]
        scale: Any = node.kwargs.get("scale") or float(width) ** -0.5
        with graph.graph.inserting_before(node):
            call = graph.graph.call_function
            turned = call(aten.transpose.int, (key, -2, -1))
            scores = call(aten.matmul.default, (query, turned))
            scaled = call(aten.mul.Tensor, (scores, scale))
            masked = scaled if mask is None else call(aten.add.Tensor, (scaled, mask))
            shares = call(aten.softmax.int, (masked, -1))
            result = call(aten.matmul.default, (shares, value))
        for one in (turned, scores, scaled, masked, shares, result):
            one.meta["nn_module_stack"] = node.meta.get("nn_module_stack")
        result.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(result)
        graph.graph.erase_node(node)
    graph.recompile()
