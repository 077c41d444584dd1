"""Launches of the kernels at sizes of real models, recorded on tensors without data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.kernels.triton.compiling import Recorder, recorded

from ridgeline.kernels.flash_problem import FlashProblem
from ridgeline.kernels.paged_attention import LayerCache, PackedTokens
from ridgeline.kernels.rotary import _laid_out_like
from ridgeline.kernels.triton import (
    adamw,
    flash_attention,
    gated_product,
    grouped_matmul,
    linear_cross_entropy,
    linear_int4,
    linear_int8,
    muon,
    paged_attention,
    residual_norm,
    rotary,
    weight_only,
)

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


def loss(classes: int, *, smoothing: float = 0.0, softcap: float = 0.0, known: bool = False) -> Any:
    with recorded(linear_cross_entropy, "chunk_kernel") as found:
        per_row = meta(1024, dtype=torch.float32)
        linear_cross_entropy.of_chunk(
            meta(1024, classes),
            meta(1024, dtype=torch.int64),
            None if known else per_row,
            per_row,
            per_row,
            -100,
            smoothing,
            0.0,
            softcap,
        )
    return found


def experts(dtype: torch.dtype = BF16) -> dict[str, Recorder]:
    with recorded(grouped_matmul, "product_kernel", "weight_kernel") as found:
        x, ends = meta(16384, 2048, dtype=dtype), meta(128, dtype=torch.int32)
        weight = meta(128, 768, 2048, dtype=dtype).transpose(1, 2)
        y = grouped_matmul.multiply(x, weight, ends)
        grouped_matmul.gradient_of_weight(x, y, ends)
    return found


def symmetric(plus: float) -> dict[str, Recorder]:
    with recorded(muon, "symmetric_kernel") as found:
        muon.symmetric_product(meta(8, 4096, 4096), plus, 2.0)
    return found


def stepped(dtype: torch.dtype) -> dict[str, Recorder]:
    with recorded(adamw, "step_kernel") as found:
        tensors = [
            tuple(torch.empty(3, 16, dtype=kind) for kind in (dtype, dtype, *[torch.float32] * 2))
            for _ in range(150)
        ]
        adamw.step(tensors, torch.ones(()), 1e-3, 0.9, 0.999, 1e-8, 0.1, 2)  # type: ignore[arg-type]
    return found


def attention(
    dim: int,
    *,
    window: int | None = None,
    rich: bool = False,
    blocks: bool = False,
    dtype: torch.dtype = BF16,
) -> dict[str, Recorder]:
    """Two rows of 4,096 tokens, 32 heads on 8; rich: documents, soft cap, dropout and sinks."""
    batch, length = 2, 4096
    problem = FlashProblem(
        sinks=meta(32, dtype=torch.float32) if rich else None,
        seed=meta(1, dtype=torch.int64) if rich else None,
        query_starts=None,
        key_starts=None,
        bounds=meta(2, batch, length, dtype=torch.int32) if rich else None,
        blocks=meta(1, 1, length // 128, length // 128, dtype=torch.bool) if blocks else None,
        scale=dim**-0.5,
        left=None if window is None else window - 1,
        right=0,
        softcap=50.0 if rich else None,
        dropout=0.1 if rich else 0.0,
        block_size=128,
        longest_queries=length,
        longest_keys=length,
        batch=batch,
    )
    queries, keys = (meta(batch, length, n, dim, dtype=dtype).transpose(1, 2) for n in (32, 8))
    names = ("forward_kernel", "along_kernel", "key_kernel", "query_kernel")
    with recorded(flash_attention, *names) as found:
        results = flash_attention.forward(problem, (queries, keys, keys))
        flash_attention.backward(problem, (queries, keys, keys), results, (queries, None))
    return found


def shrunk(kind: str, rows: int) -> dict[str, Recorder]:
    """The first layer of an 8B model's MLP with weights of so many bits."""
    kernel = "vector_kernel" if rows == 1 else "tile_kernel"
    outputs, depth = 14336, 4096
    with recorded(weight_only, kernel) as found:
        if kind == "int4":
            packed, scales = meta(outputs, depth // 2, dtype=torch.uint8), meta(32, outputs)
            linear_int4.linear(meta(rows, depth), packed, scales, None, None)
        else:
            packed = meta(outputs, depth, dtype=torch.int8)
            linear_int8.linear(meta(rows, depth), packed, meta(1, outputs), None, None)
    return found


def decoded(stored: torch.dtype | None) -> dict[str, Recorder]:
    """A token of each of four sequences over 4,096 of context, split and put together."""
    with recorded(paged_attention, "attention_kernel", "reduce_kernel") as found:
        ints = {"dtype": torch.int32}
        shape = (1024, 8, 16, 128)
        scales = None if stored is None else meta(*shape[:3], dtype=torch.float32)
        cache = LayerCache(
            keys=meta(*shape, dtype=stored or BF16),
            values=meta(*shape, dtype=stored or BF16),
            key_scales=scales,
            value_scales=scales,
        )
        packed = PackedTokens(
            query_starts=meta(5, **ints),
            context_lengths=meta(4, **ints),
            block_tables=meta(4, 256, **ints),
            slots=meta(4, dtype=torch.int64),
            max_queries=1,
            max_context=4096,
        )
        paged_attention.paged_attention(meta(4, 32, 128), cache, packed, scale=128**-0.5)
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
    "linear-cross-entropy": lambda: loss(128256),
    "linear-cross-entropy-all": lambda: loss(256000, smoothing=0.1, softcap=30.0),
    "linear-cross-entropy-again": lambda: loss(151936, known=True),
    "grouped-matmul": experts,
    "grouped-matmul-fp32": lambda: experts(torch.float32),
    "adamw": lambda: stepped(torch.float32),
    "adamw-bf16": lambda: stepped(BF16),
    "muon-gram": lambda: symmetric(0.0),
    "muon-update": lambda: symmetric(-4.775),
    "linear-int4-of-1": lambda: shrunk("int4", 1),
    "linear-int4-of-16": lambda: shrunk("int4", 16),
    "linear-int4-of-512": lambda: shrunk("int4", 512),
    "linear-int8-of-1": lambda: shrunk("int8", 1),
    "linear-int8-of-16": lambda: shrunk("int8", 16),
    "linear-int8-of-512": lambda: shrunk("int8", 512),
    "paged-decode": lambda: decoded(None),
    "paged-decode-int8": lambda: decoded(torch.int8),
    "rotary": lambda: turned(interleaved=False, backwards=False),
    "flash-attention-64": lambda: attention(64),
    "flash-attention-64-all": lambda: attention(64, rich=True, window=1024),
    "flash-attention-64-blocks": lambda: attention(64, blocks=True),
    "flash-attention-128": lambda: attention(128),
    "flash-attention-128-window": lambda: attention(128, window=1024),
    "flash-attention-128-blocks": lambda: attention(128, blocks=True),
    "flash-attention-128-all": lambda: attention(128, rich=True, window=1024),
    "flash-attention-256-all": lambda: attention(256, rich=True, window=1024),
    "flash-attention-128-fp32": lambda: attention(128, dtype=torch.float32),
    "rotary-neighbours-backward": lambda: turned(interleaved=True, backwards=True),
}
