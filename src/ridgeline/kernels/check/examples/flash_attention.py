"""FlashAttention, forward and backward, with every mask and option, at sizes that fill no tile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ridgeline.kernels.attention_mask import AttentionMask, PackedSequences
from ridgeline.kernels.flash_attention import Dropout, flash_attention, flash_attention_reference
from ridgeline.kernels.triton import flash_backward, flash_forward

KERNELS = (flash_forward, flash_backward)
"""Where the kernels stand, which are compiled; the operator loads them when it is called."""
_HEADS = (2, 1, 1)


def example() -> list[tuple[Tensor, ...]]:
    """Two heads that share keys, in bfloat16 and, with every option, in float32."""
    plain = _case((1, 70, 70, 64), AttentionMask(causal=True, window=50), torch.bfloat16)
    documents = torch.tensor([[0] * 20 + [1] * 50, [-1] * 9 + [3] * 61, [2] * 70])
    starts = [torch.tensor(one, dtype=torch.int32) for one in ([0, 21, 21, 60], [0, 21, 30, 90])]
    ragged = PackedSequences(
        query_starts=starts[0], key_starts=starts[1], longest_queries=39, longest_keys=60
    )
    blocks = torch.rand(1, 2, 3, 3) < 0.5
    blocks[..., range(3), range(3)] = True
    return [
        *plain,
        *_case(
            (3, 70, 70, 24),
            AttentionMask(causal=True, window=40, documents=documents),
            softcap=10.0,
            sinks=torch.randn(2),
            dropout=Dropout(0.2, seed=3),
        ),
        *_case((1, 70, 90, 32), AttentionMask(blocks=blocks, block_size=32), sums_too=True),
        *_case((1, 60, 90, 32), AttentionMask(causal=True, sequences=ragged)),
    ]


def _case(
    sizes: tuple[int, int, int, int],
    mask: AttentionMask,
    dtype: torch.dtype = torch.float32,
    *,
    sums_too: bool = False,
    **options: Any,
) -> list[tuple[Tensor, ...]]:
    """Batch, queries, keys and the size of a head; packed where the mask has sequences.

    With `sums_too`, the logarithms of the rows' sums have a gradient as well.
    """
    batch, num_queries, num_keys, dim = sizes
    leaves = []
    for heads, length in zip(_HEADS, (num_queries, num_keys, num_keys), strict=True):
        shape = (length, heads, dim) if mask.sequences else (batch, heads, length, dim)
        leaves.append(torch.randn(shape).to(dtype).requires_grad_())
    out, log_sums = flash_attention(*leaves, mask=mask, **options)
    upper = torch.randn(out.shape).to(dtype)
    uppers = [upper, torch.randn(log_sums.shape)][: 1 + sums_too]
    torch.autograd.backward([out, log_sums][: len(uppers)], uppers)
    found = [out, *(one.grad for one in leaves)]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = flash_attention_reference(*wide, mask=mask, **options)
    torch.autograd.backward(list(exact)[: len(uppers)], [one.double() for one in uppers])
    wanted = [exact.out, *(one.grad for one in wide)]
    finite = exact.log_sums.isfinite()
    sums = (log_sums[finite], exact.log_sums[finite])
    if dtype == torch.float32:
        return [sums, *((a, b) for a, b in zip(found, wanted, strict=True))]
    return [sums, *zip(found, wanted, _plainly(leaves, mask, upper), strict=True)]


def _plainly(leaves: list[Tensor], mask: AttentionMask, upper: Tensor) -> list[Tensor]:
    """The result and the gradients with the whole matrix, every step in the leaves' dtype."""
    queries, keys, values = (one.detach().requires_grad_() for one in leaves)
    rows, places = torch.arange(queries.shape[2])[:, None], torch.arange(keys.shape[2])
    seen = (places <= rows) & (places > rows - (mask.window or len(rows)))
    scores = (queries @ keys.mT) * queries.shape[-1] ** -0.5
    out = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values
    return [out, *torch.autograd.grad(out, (queries, keys, values), upper)]
