"""FlashAttention, forward and backward, with every mask and option, at sizes that fill no tile."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.kernels.attention_mask import AttentionMask, PackedSequences
from ridgeline.kernels.flash_attention import (
    AttentionResult,
    Dropout,
    flash_attention,
    flash_attention_reference,
)
from ridgeline.kernels.triton import flash_backward, flash_forward

KERNELS = (flash_forward, flash_backward)
"""Where the kernels stand, which are compiled; the operator loads them when it is called."""
_HEADS = ((2, 1), (4, 2))
"""Heads of queries, and of the keys that they share: one, or several."""


def example() -> list[tuple[Tensor, ...]]:
    """Heads that share keys, in bfloat16 and, with every option, in float32; laid out unlike."""
    plain = _case((1, 70, 70, 64), AttentionMask(causal=True, window=50), torch.bfloat16)
    documents = torch.tensor([[0] * 20 + [1] * 50, [-1] * 9 + [3] * 61, [2] * 70])
    starts = [torch.tensor(one, dtype=torch.int32) for one in ([0, 21, 21, 60], [0, 21, 30, 90])]
    # Of 64 queries and 93 keys the last are no sequence's.
    ragged = PackedSequences(
        query_starts=starts[0], key_starts=starts[1], longest_queries=39, longest_keys=60
    )
    blocks = torch.rand(2, 2, 3, 3) < 0.5
    blocks[..., range(3), range(3)] = True
    shared = torch.tensor([[[[True, False], [True, True]]]])  # by every row and head
    return [
        *plain,
        *_case(
            (3, 70, 70, 24),
            AttentionMask(causal=True, window=40, documents=documents),
            softcap=2.0,
            sinks=torch.randn(2),
            dropout=Dropout(0.2, seed=3),
        ),
        *_case((2, 70, 90, 32), AttentionMask(blocks=blocks, block_size=32), sums_too=True),
        *_case((1, 20, 70, 16), AttentionMask()),
        *_case(
            (2, 40, 40, 16),
            AttentionMask(
                causal=True, window=30, documents=documents[1:, :40], blocks=shared, block_size=32
            ),
        ),
        *_case((1, 64, 93, 32), AttentionMask(causal=True, sequences=ragged), shared=1),
    ]


def _case(
    sizes: tuple[int, int, int, int],
    mask: AttentionMask,
    dtype: torch.dtype = torch.float32,
    *,
    sums_too: bool = False,
    shared: int = 0,
    **options: Any,
) -> list[tuple[Tensor, ...]]:
    """Batch, queries, keys and the size of a head; packed where the mask has sequences.

    With `sums_too`, the logarithms of the rows' sums have a gradient as well. `shared` says which
    heads there are.
    """
    batch, num_queries, num_keys, dim = sizes
    heads, key_heads = _HEADS[shared]
    lengths = (num_queries, num_keys, num_keys, num_queries)
    leaves, upper = [], torch.empty(0)
    for place, length in enumerate(lengths):
        own = key_heads if place in (1, 2) else heads
        shape = (length, own, dim) if mask.sequences else (batch, own, length, dim)
        upper = _laid_out(place, shape, dtype)
        leaves.append(upper.requires_grad_())
    *leaves, upper = leaves
    out, log_sums = flash_attention(*leaves, mask=mask, **options)
    upper = upper.detach()
    uppers = [upper, torch.randn(log_sums.shape)][: 1 + sums_too]
    torch.autograd.backward([out, log_sums][: len(uppers)], uppers)
    found = [out, *(one.grad for one in leaves)]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact = _with_all_rows(flash_attention_reference(*wide, mask=mask, **options), num_queries)
    torch.autograd.backward(list(exact)[: len(uppers)], [one.double() for one in uppers])
    wanted = [exact.out, *(one.grad for one in wide)]
    finite = exact.log_sums.isfinite()
    sums = (log_sums[finite], exact.log_sums[finite])
    if dtype == torch.float32:
        return [sums, *((a, b) for a, b in zip(found, wanted, strict=True))]
    return [sums, *zip(found, wanted, _plainly(leaves, mask, upper), strict=True)]


def _with_all_rows(found: AttentionResult, count: int) -> AttentionResult:
    """What is expected, with the rows of no sequence that stand behind the others of a batch."""
    missing = count - found.log_sums.shape[-1]
    out = functional.pad(found.out, (0, 0, 0, 0, 0, missing)) if missing else found.out
    return AttentionResult(out, functional.pad(found.log_sums, (0, missing), value=-math.inf))


def _laid_out(place: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Random numbers in unlike steps: a part of longer heads, or axes in another order."""
    if place % 2:
        return torch.randn(*shape[:-3], *shape[-2:-4:-1], shape[-1]).to(dtype).transpose(-2, -3)
    longer = torch.randn(*shape[:-2], shape[-2] + place, shape[-1]).to(dtype)
    return longer[..., : shape[-2], :]


def _plainly(leaves: list[Tensor], mask: AttentionMask, upper: Tensor) -> list[Tensor]:
    """The result and the gradients with the whole matrix, every step in the leaves' dtype."""
    queries, keys, values = (one.detach().requires_grad_() for one in leaves)
    rows, places = torch.arange(queries.shape[2])[:, None], torch.arange(keys.shape[2])
    seen = (places <= rows) & (places > rows - (mask.window or len(rows)))
    scores = (queries @ keys.mT) * queries.shape[-1] ** -0.5
    out = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values
    return [out, *torch.autograd.grad(out, (queries, keys, values), upper)]
