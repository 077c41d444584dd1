"""A network for images as the operators of one forward pass of one image.

Multiply-accumulates (MACs; two FLOPs each) and activations are counted as timm counts them, so that
published tables compare: MACs of convolutions, linear layers and products of two activations
(attention's QKᵀ and AV); activations are the numbers that those operators write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NORM_MACS = {"batch_norm": 2, "layer_norm": 5, "group_norm": 5}
"""What the counter behind published tables adds for each number that a norm writes (fvcore,
`nn/jit_handles.py`; a batch norm of weights takes 4)."""
RECURRENT = "recurrent"
"""Function of an operator that the counter behind published tables does not see."""
Kind = Literal[
    "conv", "linear", "product", "norm", "activation", "softmax", "pool", "elementwise", "copy"
]
"""A `product` is of two activations, `elementwise` a sum or gate; a `copy` only moves numbers."""
MULTIPLYING = ("conv", "linear", "product")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionOperator:
    """One operator over one image; `count` equal ones stand together."""

    name: str
    """Path of the layer, such as `layer1.0.conv1`; that of the first where several are equal."""
    kind: Kind
    macs: int = 0
    weight_elements: int = 0
    """Parameters that it reads: weights and biases, without running statistics."""
    input_elements: int
    """Numbers read of all its activation inputs."""
    output_elements: int
    in_channels: int = 0
    """Channels of an image-like input, features of any other; 0 where there is no such thing."""
    out_channels: int = 0
    in_size: tuple[int, int] = (1, 1)
    """Height and width of the input; tokens and 1 for sequences."""
    out_size: tuple[int, int] = (1, 1)
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    groups: int = 1
    """Groups of a convolution; of a product, its independent ones (heads, windows)."""
    function: str = ""
    """What it computes, as PyTorch names it: `batch_norm`, `layer_norm`, `silu`, `add`, `cat`…"""
    after: str = ""
    """Function of the operator that wrote its first activation input; empty for the image."""
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionNetwork:
    """A network and its operators, in the order in which they run."""

    name: str
    image_size: tuple[int, int]
    """Height and width of the image for which the operators are counted."""
    operators: tuple[VisionOperator, ...]
    parameters: int
    """All parameters, counted once where they are shared."""

    def __hash__(self) -> int:
        """Hash what tells networks apart, not the hundreds of operators behind it."""
        return hash((self.name, self.image_size, self.parameters, len(self.operators)))

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one forward pass of one image."""
        return sum(one.macs * one.count for one in self.operators)

    @property
    def published_macs(self) -> int:
        """MACs as timm's tables have them: those of norms as well, recurrent layers left out."""
        known = [one for one in self.operators if one.function != RECURRENT]
        return sum((one.macs + _norm_macs(one)) * one.count for one in known)

    @property
    def published_activations(self) -> int:
        """Activations as timm's tables have them: what recurrent layers write is left out."""
        return sum(
            one.output_elements * one.count
            for one in self.operators
            if one.kind in MULTIPLYING and one.function != RECURRENT
        )

    @property
    def activations(self) -> int:
        """Numbers that convolutions, linear layers and products write for one image."""
        return sum(
            one.output_elements * one.count for one in self.operators if one.kind in MULTIPLYING
        )


def _norm_macs(one: VisionOperator) -> int:
    if one.kind != "norm":
        return 0
    if not one.output_elements:  # reads and writes weights
        return 4 * one.weight_elements // 2
    return NORM_MACS.get(one.function, 0) * one.output_elements
