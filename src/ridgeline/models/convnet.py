"""A convolutional network as the list of its operators, for one image of a given size.

Each operator has its kind, its shapes, its parameters and its multiply-accumulates (MACs; two
FLOPs each). Batch norms count weight and bias; their running statistics are buffers. MACs are
those of convolutions and linear layers, as the tables of papers have them. `convnets/` builds the
networks from their definitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["conv", "linear", "norm", "activation", "pool", "add", "scale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvOperator:
    """One operator over one image: `in_channels` planes of `in_size` squared in, and out alike."""

    name: str
    kind: Kind
    in_channels: int
    out_channels: int
    in_size: int
    """Height and width of the input, which is square."""
    out_size: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    bias: bool = False

    @property
    def parameters(self) -> int:
        """Weights and biases of the operator."""
        if self.kind == "norm":
            return 2 * self.out_channels
        if self.kind not in ("conv", "linear"):
            return 0
        weights = self.out_channels * (self.in_channels // self.groups) * self.kernel**2
        return weights + (self.out_channels if self.bias else 0)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the operator: each weight meets each place of the output once."""
        if self.kind not in ("conv", "linear"):
            return 0
        weights = self.out_channels * (self.in_channels // self.groups) * self.kernel**2
        return weights * self.out_size**2

    @property
    def input_elements(self) -> int:
        """Numbers read from the activations; an addition reads two tensors."""
        reads = 2 if self.kind == "add" else 1
        return reads * self.in_channels * self.in_size**2

    @property
    def output_elements(self) -> int:
        """Elements that the operator writes."""
        return self.out_channels * self.out_size**2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvNet:
    """A network for images of one size."""

    name: str
    image_size: int
    operators: tuple[ConvOperator, ...]

    @property
    def parameters(self) -> int:
        """Parameters of all operators together."""
        return sum(operator.parameters for operator in self.operators)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all operators, for one image, forward."""
        return sum(operator.macs for operator in self.operators)


class Builder:
    """A network under construction: what flows (`channels` planes of `size` squared), what was.

    Padding keeps the size: an output has ceil(size / stride) rows, as in all networks here.
    """

    def __init__(self, *, channels: int, size: int) -> None:
        self.channels = channels
        self.size = size
        self.operators: list[ConvOperator] = []

    def conv(
        self,
        name: str,
        out: int,
        *,
        kernel: int = 1,
        stride: int = 1,
        depthwise: bool = False,
        activation: bool = True,
    ) -> None:
        """A convolution without bias, its batch norm, and an activation unless told otherwise."""
        groups = self.channels if depthwise else 1
        self._add(name, "conv", out, kernel=kernel, stride=stride, groups=groups)
        self._add(f"{name}.norm", "norm", out)
        if activation:
            self.activation(name)

    def activation(self, name: str) -> None:
        """Add an element-wise function."""
        self._add(f"{name}.activation", "activation", self.channels)

    def pool(self, name: str, *, kernel: int, stride: int) -> None:
        """A padded window pooling."""
        self._add(name, "pool", self.channels, kernel=kernel, stride=stride)

    def global_pool(self, name: str) -> None:
        """The mean of each plane."""
        self._add(name, "pool", self.channels, kernel=self.size, stride=self.size)

    def add(self, name: str) -> None:
        """The sum with a shortcut."""
        self._add(name, "add", self.channels)

    def linear(self, name: str, out: int) -> None:
        """A linear layer with bias on pooled planes."""
        self._add(name, "linear", out, bias=True)

    def squeeze_excite(self, name: str, squeezed: int) -> None:
        """A gate per channel: mean, two pointwise convolutions, product (arXiv 1709.01507)."""
        channels, size = self.channels, self.size
        self.global_pool(f"{name}.pool")
        self._add(f"{name}.reduce", "conv", squeezed, bias=True)
        self.activation(f"{name}.reduce")
        self._add(f"{name}.expand", "conv", channels, bias=True)
        self.activation(f"{name}.expand")
        self.size = size
        self._add(f"{name}.scale", "scale", channels)

    def side(self, name: str, channels: int, size: int, out: int, *, stride: int) -> None:
        """A projected shortcut from a block's input: a pointwise convolution and its norm."""
        branch = Builder(channels=channels, size=size)
        branch.conv(name, out, stride=stride, activation=False)
        self.operators += branch.operators

    def done(self, name: str, image_size: int) -> ConvNet:
        """The network so far."""
        return ConvNet(name=name, image_size=image_size, operators=tuple(self.operators))

    def _add(
        self,
        name: str,
        kind: Kind,
        out: int,
        *,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
    ) -> None:
        size = -(-self.size // stride)
        self.operators.append(
            ConvOperator(
                name=name,
                kind=kind,
                in_channels=self.channels,
                out_channels=out,
                in_size=self.size,
                out_size=size,
                kernel=kernel,
                stride=stride,
                groups=groups,
                bias=bias,
            )
        )
        self.channels, self.size = out, size
