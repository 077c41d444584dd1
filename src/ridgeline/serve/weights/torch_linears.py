"""The same layers on torch's own operators, for CPUs where those are faster or alone there.

torch packs int8 per output and int4 in some group sizes; whatever else there is (fp8, groups of
int8, zero points) is dequantised at every call: right, and slow.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.kernels import linear_int8
from ridgeline.serve.weights.linears import FrozenLinear

INT4_GROUPS = (32, 64, 128, 256)
"""Group sizes that torch's int4 kernel takes."""
INT4_OUTPUTS = 16
"""Their number is a multiple of this."""


class TorchInt8Linear(FrozenLinear):
    """int8 or float8_e4m3fn [out, in], scales and zeros [out, groups]; also int4 as int8."""

    levels: Tensor
    scales: Tensor
    zeros: Tensor | None

    def __init__(
        self,
        quantised: Tensor,
        scales: Tensor,
        zeros: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        super().__init__(quantised.shape[1], quantised.shape[0], bias)
        self.register_buffer("levels", quantised.contiguous())
        self.register_buffer("scales", scales.float())
        self.register_buffer("zeros", zeros)

    def dequantised(self) -> Tensor:
        """(q − z) s in float32."""
        return linear_int8.dequantise(self.levels, self.scales, self.zeros)

    def multiplied(self, x: Tensor) -> Tensor:
        """By the levels where torch has a kernel for that, else by the dequantised weight."""
        packed = self.levels.dtype == torch.int8 and self.scales.shape[1] == 1
        if not packed or self.zeros is not None:
            return _with_bias(functional.linear(x, self.dequantised().to(x.dtype)), self.bias)
        if x.dtype == torch.bfloat16:
            # The kernel takes scales of x's dtype, which would round them: they come after it.
            ones = self.scales.new_ones(self.out_features, dtype=x.dtype)
            out = torch._weight_int8pack_mm(x.flatten(0, -2), self.levels, ones)
            out = out.unflatten(0, x.shape[:-1])
        else:
            out = functional.linear(x, self.levels.to(x.dtype))
        return _with_bias(out.float() * self.scales.flatten(), self.bias).to(x.dtype)


class TorchInt4Linear(FrozenLinear):
    """int8 levels in −8 … 7 [out, in] packed by torch, scales and zeros [out, groups]."""

    packed: Tensor
    scales_and_zeros: Tensor

    def __init__(
        self,
        quantised: Tensor,
        scales: Tensor,
        zeros: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> None:
        super().__init__(quantised.shape[1], quantised.shape[0], bias)
        self.group = quantised.shape[1] // scales.shape[1]
        shifted = torch.zeros_like(scales) if zeros is None else -zeros * scales
        pairs = torch.stack((scales.T, shifted.T), -1)
        unsigned = (quantised.int() + 8).contiguous()
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unsigned, 1)
        self.register_buffer("packed", packed)
        self.register_buffer("scales_and_zeros", pairs.contiguous())

    @staticmethod
    def takes(quantised: Tensor, scales: Tensor) -> bool:
        """Whether torch packs such a weight."""
        group = quantised.shape[1] // scales.shape[1]
        return group in INT4_GROUPS and quantised.shape[0] % INT4_OUTPUTS == 0

    def dequantised(self) -> Tensor:
        """(q − z) s in float32, which the kernel itself says."""
        eye = torch.eye(self.in_features, device=self.packed.device)
        return self._product(eye).T.contiguous()

    def multiplied(self, x: Tensor) -> Tensor:
        """By torch's packed int4."""
        out = self._product(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        return _with_bias(out, self.bias)

    def _product(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x, self.packed, self.group, self.scales_and_zeros.to(x.dtype)
        )
        return out


class TorchW8A8Linear(FrozenLinear):
    """int8 [out, in], scales [out, 1]; activations are rounded to int8, too."""

    rounds = True
    levels: Tensor
    scales: Tensor

    def __init__(
        self,
        quantised: Tensor,
        scales: Tensor,
        bias: Tensor | None = None,
        step: float | None = None,
    ) -> None:
        super().__init__(quantised.shape[1], quantised.shape[0], bias)
        self.step = step
        self.register_buffer("levels", quantised.contiguous())
        self.register_buffer("scales", scales.float())

    def dequantised(self) -> Tensor:
        """Levels times scales, in float32."""
        return self.levels.float() * self.scales

    def multiplied(self, x: Tensor) -> Tensor:
        """In integers; rounding as `kernels/linear_w8a8.py` has it."""
        wide = x.flatten(0, -2).float()
        steps = wide.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127.5
        if self.step is not None:
            steps = torch.full_like(steps, self.step)
        rounded = (wide / steps).round_().clamp_(-128, 127).to(torch.int8)
        sums = torch._int_mm(rounded, self.levels.T)
        out = _with_bias(sums.float() * (steps * self.scales.flatten()), self.bias)
        return out.to(x.dtype).unflatten(0, x.shape[:-1])


def _with_bias(out: Tensor, bias: Tensor | None) -> Tensor:
    return out if bias is None else out + bias.to(out.dtype)
