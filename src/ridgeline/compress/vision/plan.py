"""What quantisation did to each layer, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LayerKind = Literal["convolution", "transposed convolution", "linear", "matmul"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """One layer with multiplications: a convolution, a linear layer or a product of activations."""

    layer: str
    """Its name in the model (`layer1.0.conv2`); `#2` behind it where it is called a second time."""
    kind: LayerKind
    macs: int
    """Multiply-accumulates for one image."""
    weight_bits: int | None
    """The bits of its weights, None in float; of a matmul, of its second operand."""
    activation_bits: int | None
    """The bits of its inputs, None in float."""
    why: str
    """What decided it, in a few words."""

    @property
    def in_float(self) -> bool:
        """Whether the layer computes in floating point."""
        return self.activation_bits is None
