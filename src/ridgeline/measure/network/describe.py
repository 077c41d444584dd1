"""One dispatched operator as a `VisionOperator`: its kind, its shapes and its multiply-accumulates.

Kinds follow `models/vision/network.py`. A matmul with a parameter in it is `linear`, one of two
activations a `product`. An operator on parameters alone (a standardised weight, a table of relative
positions) is the same for any batch: what it reads and writes stands in its `weight_elements`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.models.vision.network import Kind, VisionOperator

CONVOLUTIONS = {"convolution", "_convolution", "convolution_overrideable", "deform_conv2d"}
MATMULS = {"addmm", "mm", "bmm", "baddbmm", "linear", "matmul", "addmv", "mv", "dot", "addbmm"}
ATTENTION = "_scaled_dot_product"
ACTIVATIONS = {
    "celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log_sigmoid",
    "mish", "prelu", "relu", "relu6", "selu", "sigmoid", "silu", "softplus", "tanh",
}  # fmt: skip
SOFTMAXES = {"_softmax", "_log_softmax", "_safe_softmax"}
REDUCTIONS = {"amax", "amin", "max", "mean", "sum"}
COPIES = {
    "_to_copy", "cat", "channel_shuffle", "clone", "col2im", "constant_pad_nd", "contiguous",
    "copy", "embedding", "expand_copy", "fill", "flip", "gather", "im2col", "index", "index_put",
    "index_select", "masked_select", "native_channel_shuffle", "new_zeros", "pixel_shuffle",
    "pixel_unshuffle", "reflection_pad2d", "repeat", "replication_pad2d", "roll", "scatter",
    "slice_scatter", "stack", "unfold_copy", "upsample_nearest2d", "zeros_like",
}  # fmt: skip
NORMS = {
    "native_layer_norm": "layer_norm", "native_group_norm": "group_norm",
    "_fused_rms_norm": "rms_norm", "rms_norm": "rms_norm",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchedCall:
    """One call of an operator: what went in and came out."""

    name: str
    """The operator's name without overload and trailing underscore: `relu`, `native_layer_norm`."""
    path: str
    """The path of the layer that called it."""
    args: tuple[Any, ...]
    tensors: Sequence[Any]
    """All tensors among its arguments, in order."""
    fixed: Sequence[bool]
    """Whether each of them is made of parameters and constants alone."""
    output: Any
    """The first tensor that it returns."""
    after: str

    @property
    def activations(self) -> list[Any]:
        """Inputs that depend on the image."""
        return [one for one, fixed in zip(self.tensors, self.fixed, strict=True) if not fixed]

    @property
    def weights(self) -> list[Any]:
        """Inputs that do not."""
        return [one for one, fixed in zip(self.tensors, self.fixed, strict=True) if fixed]


def describe(call: DispatchedCall) -> VisionOperator:
    """The operator behind one call."""
    kind, function = classify(call)
    if kind == "conv":
        return _convolution(call)
    if call.name in MATMULS:
        return _matmul(call)
    reads = sum(stored_elements(one) for one in call.activations)
    writes = call.output.numel()
    weights = call.weights[:2] if kind == "norm" else call.weights
    fixed = sum(stored_elements(one) for one in weights)
    if not call.activations:
        fixed, reads, writes = fixed + writes, 0, 0
    first = call.activations[0] if call.activations else call.output
    in_channels, in_size = features_and_size(first.shape)
    out_channels, out_size = features_and_size(call.output.shape)
    window, stride = _window(call) if kind == "pool" else ((1, 1), (1, 1))
    return VisionOperator(
        name=call.path or function,
        kind=kind,
        weight_elements=fixed,
        input_elements=reads,
        output_elements=writes,
        in_channels=in_channels,
        out_channels=out_channels,
        in_size=in_size,
        out_size=out_size,
        kernel=window,
        stride=stride,
        function=function,
        after=call.after,
    )


def classify(call: DispatchedCall) -> tuple[Kind, str]:
    """The kind of a call, and the function that it computes."""
    name = call.name
    if name in CONVOLUTIONS:
        return "conv", "conv"
    if name in MATMULS:
        is_product = len(_factors(call, fixed=False)) == 2
        return ("product", "matmul") if is_product else ("linear", "linear")
    if "batch_norm" in name:
        return "norm", "batch_norm"
    if name in NORMS:
        return "norm", NORMS[name]
    if name in SOFTMAXES:
        return "softmax", "softmax"
    plain = name.strip("_").removesuffix("_kernel")
    if plain in ACTIVATIONS:
        return "activation", plain
    if "_pool" in name:
        return "pool", plain
    if name in REDUCTIONS:
        return "pool", plain
    if name in COPIES:
        return "copy", plain
    return "elementwise", plain


def attention(
    path: str, query: Any, key: Any, value: Any, after: str
) -> tuple[VisionOperator, VisionOperator, VisionOperator]:
    """Fused attention as QKᵀ, softmax and AV, each with the function `attention`.

    `query` (… heads, rows, width), `key` and `value` with the same or fewer heads.
    """
    *groups, rows, width = query.shape
    columns, out = value.shape[-2:]
    heads = math.prod(groups)
    scores = heads * rows * columns

    def product(inner: int, outer: int, read: int, behind: str) -> VisionOperator:
        return VisionOperator(
            name=path,
            kind="product",
            macs=heads * rows * inner * outer,
            input_elements=read,
            output_elements=heads * rows * outer,
            in_channels=inner,
            out_channels=outer,
            in_size=(rows, 1),
            out_size=(rows, 1),
            groups=heads,
            function="attention",
            after=behind,
        )

    softmax = VisionOperator(
        name=path,
        kind="softmax",
        input_elements=scores,
        output_elements=scores,
        in_channels=columns,
        out_channels=columns,
        in_size=(rows, 1),
        out_size=(rows, 1),
        groups=heads,
        function="attention",
        after="attention",
    )
    first = product(width, columns, query.numel() + key.numel(), after)
    last = product(columns, out, scores + value.numel(), "attention")
    return first, softmax, last


def recurrent(path: str, steps: Any, weights: Sequence[Any], after: str) -> VisionOperator:
    """A recurrent layer over `steps` (…, features) as the one operator that it is on a device.

    Each matrix among its weights meets each step once.
    """
    rows = math.prod(steps.shape[:-1])
    matrices = [one for one in weights if one.dim() == 2]
    hidden = sum(one.shape[0] for one in matrices) // 2
    return VisionOperator(
        name=path,
        kind="linear",
        macs=rows * sum(one.numel() for one in matrices),
        weight_elements=sum(one.numel() for one in weights),
        input_elements=steps.numel(),
        output_elements=rows * hidden,
        in_channels=steps.shape[-1],
        out_channels=hidden,
        in_size=(rows, 1),
        out_size=(rows, 1),
        function="recurrent",
        after=after,
    )


def root_mean_square(path: str, rows: Any, weight: Any, after: str) -> VisionOperator:
    """The norm that `torch.nn.functional.rms_norm` is, which dispatches as its parts."""
    features, size = features_and_size(rows.shape)
    return VisionOperator(
        name=path,
        kind="norm",
        weight_elements=0 if weight is None else weight.numel(),
        input_elements=rows.numel(),
        output_elements=rows.numel(),
        in_channels=features,
        out_channels=features,
        in_size=size,
        out_size=size,
        function="rms_norm",
        after=after,
    )


def stored_elements(tensor: Any) -> int:
    """Numbers behind a tensor: those of an expanded dimension count once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in sizes if stride or size == 0)


def features_and_size(shape: Sequence[int]) -> tuple[int, tuple[int, int]]:
    """Channels, and height and width, of (batch, channels, height, width) or (batch, …, features).

    Four dimensions are an image; its channels are last where the two before are the alike ones.
    """
    if len(shape) == 4:
        _, first, second, third = shape
        if first == second != third:
            return third, (first, second)
        return first, (second, third)
    if not shape:
        return 1, (1, 1)
    return shape[-1], (math.prod(shape[:-1]), 1)


def _convolution(call: DispatchedCall) -> VisionOperator:
    image, weight = call.args[0], call.args[1]
    if call.name == "deform_conv2d":
        stride, transposed, groups = call.args[5:7], False, call.args[11]
    else:
        stride, transposed, groups = call.args[3], call.args[6], call.args[8]
    in_channels = image.shape[1]
    out_channels = call.output.shape[1]
    window = math.prod(weight.shape[2:])
    # Each weight meets each place of the output, or of the input where the convolution is
    # transposed.
    if transposed:
        macs = image.numel() * (out_channels // groups) * window
    else:
        macs = call.output.numel() * (in_channels // groups) * window
    return VisionOperator(
        name=call.path or "conv",
        kind="conv",
        macs=macs,
        weight_elements=sum(stored_elements(one) for one in call.weights),
        input_elements=sum(stored_elements(one) for one in call.activations),
        output_elements=call.output.numel(),
        in_channels=in_channels,
        out_channels=out_channels,
        in_size=two(image.shape[2:]),
        out_size=two(call.output.shape[2:]),
        kernel=two(weight.shape[2:]),
        stride=two(stride),
        groups=groups,
        function="conv_transpose" if transposed else "conv",
        after=call.after,
    )


def _factors(call: DispatchedCall, *, fixed: bool) -> list[Any]:
    """The two multiplied tensors that are parameters (`fixed`), or those that are not."""
    pairs = list(zip(call.tensors, call.fixed, strict=True))
    multiplied = pairs[:2] if call.name in ("linear", "mm", "bmm", "matmul") else pairs[-2:]
    return [one for one, is_fixed in multiplied if is_fixed is fixed]


def _matmul(call: DispatchedCall) -> VisionOperator:
    kind, function = classify(call)
    left, right = call.tensors[:2]
    if call.name not in ("linear", "mm", "bmm", "matmul", "mv", "dot"):
        left, right = call.tensors[-2:]
    inner = left.shape[-1]
    activations = sum(stored_elements(one) for one in call.activations)
    weights = sum(stored_elements(one) for one in call.weights)
    outputs = call.output.numel()
    rows, columns = (left.shape[-2] if left.dim() > 1 else 1), call.output.shape[-1]
    groups = left.shape[0] if left.dim() == 3 else 1
    is_left = any(one is left for one in _factors(call, fixed=False))
    if kind == "linear" and left.dim() == 2 and not is_left:
        # The weight stands on the left: rows are its features.
        rows, columns, inner = right.shape[-1], left.shape[-2], left.shape[-1]
    return VisionOperator(
        name=call.path or function,
        kind=kind,
        macs=outputs * left.shape[-1],
        weight_elements=weights,
        input_elements=activations,
        output_elements=outputs,
        in_channels=inner,
        out_channels=columns,
        in_size=(rows, 1),
        out_size=(rows, 1),
        groups=groups,
        function=function,
        after=call.after,
    )


def _window(call: DispatchedCall) -> tuple[tuple[int, int], tuple[int, int]]:
    """Kernel and stride of a pooling; of one over whole planes, (1, 1)."""
    if "pool" not in call.name or "adaptive" in call.name:
        return (1, 1), (1, 1)
    kernel = two(call.args[1])
    stride = two(call.args[2]) if len(call.args) > 2 and call.args[2] else kernel
    return kernel, stride


def two(sizes: Sequence[int] | int) -> tuple[int, int]:
    """Two sizes of one, two or three: a line is as wide as 1, the depth of a volume its rows.

    >>> two([7]), two([3, 5]), two([2, 3, 5]), two(4)
    ((7, 1), (3, 5), (6, 5), (4, 4))
    """
    if isinstance(sizes, int):
        return sizes, sizes
    if len(sizes) == 1:
        return int(sizes[0]), 1
    return math.prod(sizes[:-1]), int(sizes[-1])
