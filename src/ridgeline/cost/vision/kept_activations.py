"""What autograd keeps of a forward pass of images until the backward pass has used it.

Each operator keeps what the formula of its derivative reads (PyTorch's `derivatives.yaml`):

    convolution, linear      their input
    batch, layer, group norm their input, and mean and inverse deviation per channel, row or group
    relu, sigmoid, softmax   their output (of relu6 and leaky relu too, which networks run in place)
    gelu, silu, hardswish …  their input
    product of two, gate     both
    fused attention          query, key, value, output and the log-sum of each row
                             (Dao et al., 2205.14135, algorithm 4), never the scores
    max pooling              its input, and an index of 8 bytes per output
    sum, concatenation, mean nothing

A tensor that two operators read is kept once: what is kept of the outputs of one function and size
is at most as many as were written. Under autocast convolutions and linear layers keep 16-bit
copies, layer norms and plain softmax 32-bit ones. `torch.compile` computes again what a chain of
element-wise operators wrote from what a convolution or linear layer wrote (its min-cut
partitioner), so that of such a chain only what a matrix product reads is kept, and what a gate
multiplies: the gate lies too far off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ridgeline.models.vision.network import VisionNetwork, VisionOperator

Numerics = Literal["fp32", "amp", "sixteen"]
"""All in 32 bits, autocast over 32-bit weights, or all in 16 bits."""
_KEEP_OUTPUT = {"relu", "sigmoid", "tanh", "softmax", "hardtanh", "relu6", "leaky_relu", "elu"}
_KEEP_INPUT = {
    "celu", "gelu", "hardsigmoid", "hardswish", "log_sigmoid", "mish", "prelu", "selu", "silu",
    "softplus", "pow", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d",
    "adaptive_avg_pool1d", "adaptive_avg_pool3d",
}  # fmt: skip
_MAX_POOLS = {"max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d"}
_MULTIPLY = {"mul", "div"}
_THIRTY_TWO = {"layer_norm", "group_norm", "rms_norm", "softmax"}
"""Functions that autocast computes in 32 bits."""
_INDEX_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptActivation:
    """A tensor that waits for the backward pass, and `count` more of its size."""

    name: str
    """Layer that asks for it; the first of several."""
    written_by: str
    """Function of the operator that wrote it; empty for the image."""
    elements: int
    """Numbers of one image."""
    element_bytes: int
    count: int

    @property
    def image_bytes(self) -> int:
        """Bytes of all of them for one image."""
        return self.count * self.elements * self.element_bytes


def kept_activations(
    network: VisionNetwork, numerics: Numerics, *, compiled: bool = False
) -> list[KeptActivation]:
    """What is kept per image, in the order in which it is written.

    >>> from ridgeline.models.vision.network import VisionOperator
    >>> relu = VisionOperator(
    ...     name="act", kind="activation", function="relu", input_elements=64, output_elements=64
    ... )
    >>> net = VisionNetwork(name="", image_size=(8, 8), operators=(relu,), parameters=0)
    >>> [(one.written_by, one.image_bytes) for one in kept_activations(net, "amp")]
    [('relu', 128)]
    """
    written: Counter[tuple[str, int]] = Counter()
    for one in network.operators:
        written[one.function, one.output_elements] += one.count
    kept: dict[tuple[str, int, int], KeptActivation] = {}
    for one in network.operators:
        claims = _compiled(one, numerics) if compiled else _eager(one, numerics)
        for claim in claims:
            key = claim.written_by, claim.elements, claim.element_bytes
            known = kept.get(key)
            count = claim.count + (known.count if known else 0)
            most = written.get(key[:2], count)
            kept[key] = replace(known or claim, count=min(count, most))
    return [one for one in kept.values() if one.elements]


def statistics_bytes(network: VisionNetwork) -> tuple[int, int]:
    """What norms keep of means and deviations: bytes of an image, and bytes of any batch."""
    per_image = batch = 0
    for one in network.operators:
        if one.function == "batch_norm":
            batch += one.count * 8 * one.out_channels
        elif one.kind == "norm":
            rows = one.in_size[0] * one.in_size[1] if one.function != "group_norm" else one.groups
            per_image += one.count * 8 * rows
    return per_image, batch


def _eager(one: VisionOperator, numerics: Numerics) -> Iterator[KeptActivation]:
    """What one operator asks to be kept."""
    if one.function == "attention":
        yield from _attention(one, numerics)
    elif one.kind in ("conv", "linear", "product"):
        yield _claim(one, one.after, one.input_elements, 4 if numerics == "fp32" else 2)
    elif one.kind == "norm":
        wide = numerics == "fp32" or (numerics == "amp" and one.function in _THIRTY_TWO)
        yield _claim(one, one.after, one.input_elements, 4 if wide else 2)
    elif one.function in _KEEP_OUTPUT:
        yield _claim(one, one.function, one.output_elements, _width(one.function, one, numerics))
    elif one.function in _KEEP_INPUT:
        yield _claim(one, one.after, one.input_elements, _width(one.after, one, numerics))
    elif one.function in _MAX_POOLS:
        yield _claim(one, one.after, one.input_elements, _width(one.after, one, numerics))
        yield _claim(one, "index", one.output_elements, _INDEX_BYTES)
    elif one.function in _MULTIPLY:
        yield from _product(one, numerics)


def _compiled(one: VisionOperator, numerics: Numerics) -> Iterator[KeptActivation]:
    """The same once chains of element-wise operators are computed again."""
    if one.function in _MAX_POOLS:
        yield _claim(one, "index", one.output_elements, 1)
    elif one.kind in ("activation", "elementwise", "pool"):
        again = one.function in _KEEP_OUTPUT or one.after not in ("conv", "linear", "matmul")
        gate = one.function in _MULTIPLY and one.input_elements > one.output_elements
        if gate or not again:
            yield from _eager(one, numerics)
    else:
        yield from _eager(one, numerics)


def _attention(one: VisionOperator, numerics: Numerics) -> Iterator[KeptActivation]:
    """Fused attention stands as QKᵀ, softmax and AV; only the two products ask for anything."""
    if one.kind != "product":
        return
    width = 4 if numerics == "fp32" else 2
    rows = one.in_size[0]
    if one.after == "attention":
        # AV: its input is the scores, which are not kept, and the values.
        scores = one.groups * rows * one.in_channels
        yield _claim(one, "value", one.input_elements - scores, width)
        yield _claim(one, "attention", one.output_elements, width)
        yield _claim(one, "log-sum", one.groups * rows, 4)
    else:
        yield _claim(one, "query and key", one.input_elements, width)


def _product(one: VisionOperator, numerics: Numerics) -> Iterator[KeptActivation]:
    """A product with a parameter keeps its input, one of two activations both, else nothing."""
    second = one.input_elements - one.output_elements
    if second > 0 or one.weight_elements > 1:
        first = min(one.input_elements, one.output_elements)
        yield _claim(one, one.after, first, _width(one.after, one, numerics))
    if second > 0:
        yield _claim(one, "factor", second, _width("", one, numerics))


def _claim(one: VisionOperator, written_by: str, elements: int, width: int) -> KeptActivation:
    return KeptActivation(
        name=one.name,
        written_by=written_by,
        elements=elements,
        element_bytes=width,
        count=one.count,
    )


def _width(written_by: str, one: VisionOperator, numerics: Numerics) -> int:
    """Bytes of a number that `written_by` wrote."""
    wide = written_by in _THIRTY_TWO or (one.function in _KEEP_OUTPUT and one.after in _THIRTY_TWO)
    return 4 if numerics == "fp32" or (numerics == "amp" and wide) else 2
