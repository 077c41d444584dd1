"""Launches of the training kernels at sizes of real models, recorded on tensors without data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.kernels.triton.compiling import Recorder, recorded

from ridgeline.kernels.rotary import _laid_out_like
from ridgeline.kernels.triton import gated_product, residual_norm, rotary

BF16 = torch.bfloat16


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def norms(size: int, *, centred: bool, residual: bool = True) -> dict[str, Recorder]:
    with recorded(residual_norm, "forward_kernel", "backward_kernel") as found:
        x = meta(8192, size)
        added, bias = x if residual else None, meta(size) if centred else None
        y, h, mean, rstd = residual_norm.forward(x, added, x[0], bias, 1e-6, 0.0, centred=centred)
        dh = h if residual else None
        residual_norm.backward(y, dh, x, x[0], mean, rstd, 0.0, centred=centred)
    return found


def gated(activation: str) -> dict[str, Recorder]:
    with recorded(gated_product, "forward_kernel", "backward_kernel") as found:
        both = meta(8192, 2 * 14336)
        gate, up = both.chunk(2, -1)
        y = gated_product.forward(gate, up, activation)
        gated_product.backward(y, gate, up, activation)
    return found


def turned(*, interleaved: bool, backwards: bool) -> dict[str, Recorder]:
    with recorded(rotary, "rotary_kernel") as found:
        queries, keys = (meta(2, 4096, count, 128).transpose(1, 2) for count in (32, 8))
        rotary.turn(
            (_laid_out_like(queries), _laid_out_like(keys)),
            (queries, keys),
            (meta(1, 4096, 128), meta(1, 4096, 128)),
            interleaved=interleaved,
            backwards=backwards,
        )
    return found


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "rms-norm-128": lambda: norms(128, centred=False, residual=False),
    "rms-norm-4096": lambda: norms(4096, centred=False),
    "rms-norm-8192": lambda: norms(8192, centred=False),
    "layer-norm-4096": lambda: norms(4096, centred=True),
    "layer-norm-8192": lambda: norms(8192, centred=True),
    "swiglu": lambda: gated("silu"),
    "geglu-tanh": lambda: gated("gelu_tanh"),
    "geglu": lambda: gated("gelu"),
    "rotary": lambda: turned(interleaved=False, backwards=False),
    "rotary-neighbours-backward": lambda: turned(interleaved=True, backwards=True),
}
