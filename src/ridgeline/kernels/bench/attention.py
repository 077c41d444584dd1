"""FlashAttention beside the library's kernels: causal, with a window, over a block mask.

FLOPs are those of pairs that are seen (4 · D each, times 2.5 backward: Dao, 2307.08691, section
4.1); for a window and for blocks, of the tiles that hold one, so that the rate says what a tile
costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ridgeline.kernels.attention_mask import AttentionMask
from ridgeline.kernels.bench.timing import MADE, BenchRow
from ridgeline.kernels.flash_attention import flash_attention

_BATCH, _HEADS, _KEY_HEADS, _DIM = 2, 32, 8, 128
_TILE = 128
_WITH_WGMMA = 9
"""The compute capability whose warpgroups multiply from shared memory by `wgmma`."""
LIBRARIES = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "torch flash": SDPBackend.FLASH_ATTENTION,
}
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def attention_rows() -> Iterator[BenchRow]:
    """Forward and backward of 8,192 and 4,096 tokens, 32 heads on 8."""
    for length in (4096, 8192):
        ways: dict[str, Attend] = {"ours": partial(_ours, mask=AttentionMask(causal=True))}
        ways |= {name: partial(_library, backend=backend) for name, backend in LIBRARIES.items()}
        pairs = length * (length + 1) // 2
        yield from _both_ways(f"attention causal {length}", ways, length, pairs)
        if torch.cuda.get_device_capability()[0] == _WITH_WGMMA:
            yield _gluon_row(length, pairs)
    length, window = 8192, 1024
    mask = AttentionMask(causal=True, window=window)
    tiles = length // _TILE
    seen = sum(min(tile, window // _TILE) + 1 for tile in range(tiles))
    name = f"attention window {window} of {length}"
    yield from _both_ways(name, {"ours": partial(_ours, mask=mask)}, length, seen * _TILE**2)
    generator = torch.Generator().manual_seed(0)
    blocks = torch.rand(1, 1, tiles, tiles, generator=generator) < 0.25
    blocks[..., range(tiles), range(tiles)] = True
    mask = AttentionMask(blocks=blocks.cuda(), block_size=_TILE)
    pairs = int(blocks.sum()) * _TILE**2
    yield from _both_ways(
        f"attention blocks of {length}", {"ours": partial(_ours, mask=mask)}, length, pairs
    )


def _gluon_row(length: int, pairs: int) -> BenchRow:
    """The forward that is written for Hopper, beside the library's and the one in Triton."""
    from ridgeline.kernels.gluon.hopper_attention import forward

    queries, keys, values = (
        torch.randn(_BATCH, heads, length, _DIM, **MADE)
        for heads in (_HEADS, _KEY_HEADS, _KEY_HEADS)
    )
    mask = AttentionMask(causal=True)
    return BenchRow(
        name=f"attention causal {length} forward in Gluon",
        ways={
            "ours": lambda: forward(queries, keys, values, scale=_DIM**-0.5, causal=True),
            "ours in Triton": lambda: _ours(queries, keys, values, mask=mask),
            "cuDNN": lambda: _library(queries, keys, values, backend=LIBRARIES["cuDNN"]),
        },
        flops=4 * _BATCH * _HEADS * _DIM * pairs,
        goals={"cuDNN": 0.8},
    )


def _ours(queries: Tensor, keys: Tensor, values: Tensor, *, mask: AttentionMask) -> Tensor:
    return flash_attention(queries, keys, values, mask=mask).out


def _library(queries: Tensor, keys: Tensor, values: Tensor, *, backend: SDPBackend) -> Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)


def _both_ways(name: str, ways: dict[str, Attend], length: int, pairs: int) -> Iterator[BenchRow]:
    flops = 4 * _BATCH * _HEADS * _DIM * pairs
    leaves = [
        torch.randn(_BATCH, length, heads, _DIM, **MADE).transpose(1, 2).requires_grad_()
        for heads in (_HEADS, _KEY_HEADS, _KEY_HEADS)
    ]

    def forward(attend: Attend) -> object:
        with torch.no_grad():
            return attend(*leaves)

    def there_and_back(attend: Attend) -> object:
        out = attend(*leaves)
        return torch.autograd.grad(out, leaves, torch.ones_like(out))

    goals = {other: 0.8 for other in ways if other == "cuDNN"}
    yield BenchRow(
        name=f"{name} forward",
        ways={way: partial(forward, attend) for way, attend in ways.items()},
        flops=flops,
        goals=goals,
    )
    yield BenchRow(
        name=f"{name} forward and backward",
        ways={way: partial(there_and_back, attend) for way, attend in ways.items()},
        flops=flops * 7 // 2,
        goals=dict.fromkeys(goals, 0.75),
    )
