"""A frozen linear layer whose weight is kept in four bits.

As in QLoRA (Dettmers et al., arXiv 2305.14314, section 3), without its second quantisation.
Blocks of 64 numbers along a row share a scale, their largest magnitude; each number is one of the
16 values of NormalFloat4 (appendix E), the quantiles of a normal distribution. Scales are kept in
bf16: 4.25 bits a number. The layer is whole parameters (`packed`, `scales`), each cut by rows
without a common factor, so that any sharding of them by rows is right; this is why it is not
torchao's `NF4Tensor`, whose scales share one mean per tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.errors import InputError

_LARGEST_BLOCK = 64
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


class FourBitLinear(nn.Linear):
    """A linear layer whose weight is quantised and frozen, in place of the plain one.

    Args:
        like: The layer; on the meta device, or real (it is quantised then).
        name: Its name, for complaints.
    """

    def __init__(self, like: nn.Linear, name: str = "") -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = like.in_features, like.out_features
        self.block = _block(like.in_features, name)
        self.dtype = like.weight.dtype
        self.bias = like.bias
        if self.bias is not None:
            self.bias.requires_grad_(requires_grad=False)
        packed, scales = quantise(like.weight.detach(), self.block)
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight as it is multiplied; made anew each time."""
        return dequantise(self.packed, self.scales, self.dtype)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Multiply by the dequantised weight, [..., in] to [..., out]."""
        return _FourBitProduct.apply(input, self.packed, self.scales, self.bias)


def quantise(weight: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """A matrix [out, in] as packed codes [out, in/2] (uint8) and scales [out, in/block] (bf16)."""
    out_features = weight.shape[0]
    if weight.is_meta:
        columns = weight.shape[1]
        return (
            torch.empty(out_features, columns // 2, dtype=torch.uint8, device="meta"),
            torch.empty(out_features, columns // block, dtype=torch.bfloat16, device="meta"),
        )
    blocks = weight.float().view(out_features, -1, block)
    scales = blocks.abs().amax(dim=-1).bfloat16()
    shares = blocks / scales.float().clamp(min=torch.finfo(torch.float32).tiny)[..., None]
    values = torch.tensor(NF4, device=weight.device)
    # The nearest of sorted values changes half-way between neighbours.
    codes = torch.bucketize(shares, (values[1:] + values[:-1]) / 2).to(torch.uint8)
    codes = codes.view(out_features, -1, 2)
    return codes[..., 0] << 4 | codes[..., 1], scales


def dequantise(packed: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix [out, in] that codes and scales stand for."""
    out_features, pairs = packed.shape
    if packed.is_meta:
        return torch.empty(out_features, 2 * pairs, dtype=dtype, device="meta")
    values = torch.tensor(NF4, device=packed.device, dtype=dtype)
    codes = torch.stack((packed >> 4, packed & 0xF), dim=-1).view(out_features, scales.shape[1], -1)
    return (values[codes.int()] * scales.to(dtype)[..., None]).view(out_features, -1)


class _FourBitProduct(torch.autograd.Function):
    """x Wᵀ + b; for backward only the four bits are kept."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x: Tensor,
        packed: Tensor,
        scales: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        dtype = x.dtype
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
        ctx.save_for_backward(packed, scales)
        ctx.dtype = x.dtype  # type: ignore[attr-defined]
        weight = dequantise(packed, scales, dtype)
        return functional.linear(x.to(dtype), weight, None if bias is None else bias.to(dtype))

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor
    ) -> tuple[Tensor, None, None, None]:
        packed, scales = ctx.saved_tensors  # type: ignore[attr-defined]
        (gradient,) = gradients
        x = gradient @ dequantise(packed, scales, gradient.dtype)
        return x.to(ctx.dtype), None, None, None  # type: ignore[attr-defined]


def quantise_linears(model: nn.Module, head: nn.Module | None) -> None:
    """Replace every linear layer but the head."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and module is not head:
            owner, _, own = name.rpartition(".")
            setattr(model.get_submodule(owner), own, FourBitLinear(module, name))


def _block(columns: int, name: str) -> int:
    """The largest power of two up to 64 that divides a row."""
    block = _LARGEST_BLOCK
    while block > 1 and columns % block:
        block //= 2
    if block < 2:
        raise InputError(
            f"adapter.kind qlora: {name or 'a linear layer'} has an odd number of inputs"
            f" ({columns}), which four bits cannot be packed for; use lora for this model"
        )
    return block
