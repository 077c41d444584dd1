"""Every operation that is understood, by its name in ATen; in place (`relu_`) or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ridgeline.compress.pruning.channels.reading import Channels, GraphReading
from ridgeline.compress.pruning.channels.rules import pointwise, products, shapes

Rule = Callable[[GraphReading, torch.fx.Node], Channels | list[Channels | None] | None]

_POINTWISE = """
    relu relu6 hardtanh gelu silu mish elu celu selu leaky_relu sigmoid hardsigmoid hardswish tanh
    softplus clamp clamp_min clamp_max abs neg exp sqrt rsqrt square dropout feature_dropout
    alpha_dropout clone contiguous detach alias to _to_copy
"""
_OVER_POSITIONS = """
    max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d upsample_nearest2d
    upsample_bilinear2d upsample_bicubic2d pad constant_pad_nd reflection_pad2d replication_pad2d
"""
_BY_RULE: tuple[tuple[Any, str], ...] = (
    (products.convolution, "conv1d conv2d conv3d"),
    (products.transposed_convolution, "conv_transpose1d conv_transpose2d conv_transpose3d"),
    (products.linear, "linear"),
    (pointwise.per_channel, "batch_norm instance_norm"),
    (pointwise.group, "group_norm"),
    (pointwise.layer, "layer_norm"),
    (pointwise.same, _POINTWISE),
    (pointwise.prelu, "prelu"),
    (pointwise.pair, "add sub mul div maximum minimum pow"),
    (pointwise.concatenated, "cat"),
    (shapes.reshaped, "view reshape _unsafe_view flatten unflatten squeeze unsqueeze"),
    (shapes.permuted, "permute transpose"),
    (shapes.in_last_dimensions, _OVER_POSITIONS),
    (shapes.averaged, "mean sum amax amin"),
    (shapes.expanded, "expand expand_as"),
    (shapes.chunked, "chunk"),
    (shapes.one_of, "getitem"),
    (shapes.sliced, "slice narrow"),
)

RULES: dict[str, Rule] = {name: rule for rule, names in _BY_RULE for name in names.split()}


def rule_of(node: torch.fx.Node) -> Rule | None:
    """The rule of an operation; None: it is not understood."""
    if isinstance(node.target, torch._ops.OpOverload):
        name = node.target._schema.name.removeprefix("aten::")
    else:
        name = getattr(node.target, "__name__", str(node.target))
    return RULES.get(name) or RULES.get(name.removesuffix("_"))
