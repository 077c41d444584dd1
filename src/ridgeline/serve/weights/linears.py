"""Linear layers for inference, in place of `nn.Linear`: packed, 8-bit, 4-bit.

They take x [..., in_features] of bfloat16, float32 or float16 (which a CPU widens first: it
multiplies float16 slowly) and answer in the same dtype. None of them can be trained, and none moves
to another device once it is made: how a weight lies depends on the device.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ridgeline.kernels import linear, linear_int4, linear_int8, linear_w8a8
from ridgeline.kernels.linear import PANEL
from ridgeline.serve.messages import LinearKernel


class FrozenLinear(nn.Module):
    """What all of them share: two sizes, a bias in float32, and their weight on demand."""

    bias: Tensor | None
    rounds: ClassVar[bool] = False
    """Whether activations are rounded to int8 before they are multiplied."""
    kernel: LinearKernel | None = None
    """Whose it is, and why; None: there was no choice to make."""

    def __init__(self, in_features: int, out_features: int, bias: Tensor | None) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    def dequantised(self) -> Tensor:
        """The weight [out_features, in_features] that this layer multiplies by."""
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        """The weight, made anew each time: some modules multiply by their layers' weights."""
        return self.dequantised()

    def multiplied(self, x: Tensor) -> Tensor:
        """The matmul with the weight, for an x of a dtype that the kernel takes."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        if x.dtype == torch.float16 and not x.is_cuda:
            return self.multiplied(x.float()).half()
        return self.multiplied(x)

    def extra_repr(self) -> str:
        """The sizes as `nn.Linear` says them."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class DenseLinear(FrozenLinear):
    """The weight as it is, in panels."""

    panels: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias)
        self.register_buffer("panels", linear.pack(weight.detach()))

    def dequantised(self) -> Tensor:
        """The weight, bit by bit."""
        return linear.unpack(self.panels, self.out_features, self.in_features)

    def multiplied(self, x: Tensor) -> Tensor:
        """The matmul with the panels."""
        return linear.linear(x, self.panels, self.bias, self.out_features)


class GroupedLinear(FrozenLinear):
    """Quantised weights with a scale, and maybe a zero point, per group along the depth."""

    panels: Tensor
    scales: Tensor
    zeros: Tensor | None

    def __init__(
        self,
        panels: Tensor,
        shape: torch.Size,
        scales: Tensor,
        zeros: Tensor | None,
        bias: Tensor | None,
    ) -> None:
        super().__init__(shape[1], shape[0], bias)
        if scales.dtype == torch.float16:
            scales = scales.float()
        self.register_buffer("panels", panels)
        self.register_buffer("scales", linear_int8.pack_groups(scales))
        self.register_buffer("zeros", None if zeros is None else linear_int8.pack_groups(zeros))

    @property
    def num_groups(self) -> int:
        """The number of groups along the depth."""
        return self.scales.shape[0 if self.scales.is_cuda else 1]

    def quantised(self) -> Tensor:
        """[out_features, in_features] in the stored levels."""
        raise NotImplementedError

    def dequantised(self) -> Tensor:
        """(q − z) s in float32."""
        scales, zeros = (
            None if values is None else linear_int8.unpack_groups(values, self.out_features)
            for values in (self.scales, self.zeros)
        )
        assert scales is not None
        return linear_int8.dequantise(self.quantised(), scales, zeros)


class Int8Linear(GroupedLinear):
    """int8 or float8_e4m3fn [out, in], scales and zeros [out, groups]."""

    def __init__(
        self,
        quantised: Tensor,
        scales: Tensor,
        zeros: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        super().__init__(linear_int8.pack(quantised), quantised.shape, scales, zeros, bias)

    def quantised(self) -> Tensor:
        """The levels as they were given."""
        return linear_int8.unpack(self.panels, self.out_features, self.in_features)

    def multiplied(self, x: Tensor) -> Tensor:
        """The matmul with 8-bit panels."""
        return linear_int8.linear(
            x, self.panels, self.scales, self.zeros, self.bias, self.out_features
        )


class Int4Linear(GroupedLinear):
    """int8 levels in −8 … 7 [out, in], scales and zeros [out, groups]."""

    def __init__(
        self,
        quantised: Tensor,
        scales: Tensor,
        zeros: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        super().__init__(linear_int4.pack(quantised), quantised.shape, scales, zeros, bias)

    def quantised(self) -> Tensor:
        """The levels as they were given."""
        return linear_int4.unpack(self.panels, self.out_features)

    def multiplied(self, x: Tensor) -> Tensor:
        """The matmul with 4-bit panels."""
        return linear_int4.linear(
            x, self.panels, self.scales, self.zeros, self.bias, self.out_features
        )


class W8A8Linear(FrozenLinear):
    """int8 [out, in], scales [out, 1]; activations are rounded to int8, too. CPU only.

    `step`: what activations are divided by; None: every row has its own.
    """

    rounds = True
    panels: Tensor
    scales: Tensor
    sums: Tensor

    def __init__(
        self,
        quantised: Tensor,
        scales: Tensor,
        bias: Tensor | None = None,
        step: float | None = None,
    ) -> None:
        super().__init__(quantised.shape[1], quantised.shape[0], bias)
        self.step = step
        panels, scales, sums = linear_w8a8.pack(quantised, scales)
        self.register_buffer("panels", panels)
        self.register_buffer("scales", scales)
        self.register_buffer("sums", sums)

    def dequantised(self) -> Tensor:
        """Levels times scales, in float32."""
        levels = linear_w8a8.unpack(self.panels, self.out_features, self.in_features)
        return levels.float() * self.scales[: self.out_features, None]

    def multiplied(self, x: Tensor) -> Tensor:
        """The matmul with 8-bit panels, in integers."""
        return linear_w8a8.linear(
            x, self.panels, self.scales, self.sums, self.bias, self.out_features, self.step
        )


class PanelEmbedding(nn.Module):
    """In place of an `nn.Embedding` or a subclass, whose forward still runs, over the rows needed.

    The subclass may scale its rows (Gemma); all that it must not do is look at ids by their number.
    """

    def __init__(self, inner: nn.Embedding, head: DenseLinear) -> None:
        super().__init__()
        self.embedding_dim = inner.embedding_dim
        self.num_embeddings = inner.num_embeddings
        self._panels = head.panels
        inner.padding_idx = None  # only gradients care, and it may lie beyond the rows needed
        inner.weight = nn.Parameter(  # on a device even where the model has no values yet
            inner.weight.new_empty(0, device=head.panels.device), requires_grad=False
        )
        self.inner = None if type(inner) is nn.Embedding else inner

    def forward(self, ids: Tensor) -> Tensor:
        """[...] to [..., embedding_dim]."""
        rows = self._panels[ids // PANEL, :, ids % PANEL]
        rows = rows.flatten(ids.ndim)[..., : self.embedding_dim]
        if self.inner is None:
            return rows
        numbers = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
        weight = {"weight": rows.reshape(-1, self.embedding_dim)}
        return torch.func.functional_call(self.inner, weight, (numbers,))
