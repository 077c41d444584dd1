"""A weight matrix in few bits, and what a layer's activations are quantised to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.kernels.number_formats import codebooks, integer, mx, nvfp4
from ridgeline.records.scheme import NumberFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """Levels, and what turns them back into weights.

    Whatever made it (rounding to nearest, GPTQ, AWQ …), it is saved, emulated and run the same way.
    """

    format: NumberFormat
    levels: Tensor
    """[out, in] int8 for integers (unsigned levels of affine formats are shifted to signed), the
    codes as torch.float8_* for fp8 and mxfp8, uint8 codes 0 … 15 for fp4; [out, in / g, M] uint8
    of codebooks."""
    scales: Tensor
    """[out, G] (G = 1 but for groups; [1, 1] for a whole tensor), in the dtype that is saved: the
    weight's own, uint8 exponents (E8M0) for mx, float8_e4m3fn for nvfp4."""
    zeros: Tensor | None = None
    """[out, G] int8, in levels; None: symmetric."""
    global_scale: Tensor | None = None
    """[1] float32, for nvfp4 alone."""
    order: Tensor | None = None
    """The group of each column, [in] int32, where an order broke groups apart; None: in rows."""
    books: Tensor | None = None
    """[M, 256, g], for codebooks alone, in the dtype of the scales."""

    @property
    def shape(self) -> torch.Size:
        """The weight's, [out, in]."""
        if self.books is None:
            return self.levels.shape
        return torch.Size((len(self.levels), self.levels.shape[1] * self.books.shape[2]))

    def dequantised(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight [out, in] that it stands for."""
        if self.books is not None:
            return codebooks.decode(self.levels, self.books, self.scales).to(dtype)
        levels, scales, zeros = self._beside()
        if self.format.kind == "nvfp4":
            assert self.global_scale is not None
            values = nvfp4.decode(levels, scales, self.global_scale)
        elif self.format.kind in {"mxfp4", "mxfp8"}:
            values = mx.decode(levels, scales)
        else:
            values = integer.decode(levels, scales, zeros)
        return values.to(dtype).reshape(self.levels.shape)

    def _beside(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Levels, and scales and zeros that broadcast to them."""
        if self.order is not None:
            zeros = None if self.zeros is None else self.zeros[:, self.order]
            return self.levels, self.scales[:, self.order], zeros
        groups, depth = self.scales.shape[1], self.levels.shape[1]
        parts = self.levels.unflatten(1, (groups, depth // max(1, groups)))
        zeros = None if self.zeros is None else self.zeros.unsqueeze(-1)
        return parts, self.scales.unsqueeze(-1), zeros


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationScales:
    """What a layer's activations (or a cache's keys and values) are quantised to."""

    format: NumberFormat
    scale: Tensor | None = None
    """[1], for a static range; None: each token or group finds its own."""
    zero: Tensor | None = None
    """[1] int8, for an affine static range."""
    global_scale: Tensor | None = None
    """[1] float32, for nvfp4 alone."""
