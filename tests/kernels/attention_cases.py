"""Problems of attention by name, and how far an answer is from float64 in all its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ridgeline.kernels.attention_mask import AttentionMask, PackedSequences, visible
from ridgeline.kernels.flash_attention import Dropout, flash_attention_reference

RUNS = torch.tensor([[0] * 10 + [1] * 3 + [5] * 20 + [-1] * 4, [4] * 9 + [2] * 28])
"""Documents of 37 tokens; the first row ends with padding."""
DROPPED = Dropout(0.3, 77 << 33 | 5)


def starts(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def packed(queries: tuple[int, ...], keys: tuple[int, ...]) -> PackedSequences:
    return PackedSequences(
        query_starts=starts(*queries),
        key_starts=starts(*keys),
        longest_queries=max(queries),
        longest_keys=max(keys),
    )


def blocks(*shape: int, share: float = 0.5) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape))) < share


@dataclass(frozen=True)
class Case:
    """Sizes [B, H, KV, T, S, D], a mask and the rest."""

    sizes: tuple[int, int, int, int, int, int] = (2, 4, 2, 37, 37, 16)
    mask: AttentionMask = field(default_factory=AttentionMask)
    options: dict[str, Any] = field(default_factory=dict)
    sinks: bool = False


SOME = AttentionMask(causal=True)
CASES: dict[str, Case] = {
    "everything seen": Case((1, 2, 1, 19, 33, 24)),
    "causal": Case((2, 2, 2, 37, 37, 16), SOME),
    "bottom right": Case((1, 2, 2, 20, 53, 16), SOME),
    "rows that see nothing": Case((1, 2, 1, 53, 20, 16), SOME),
    "one token": Case((2, 3, 1, 1, 1, 8), SOME),
    "one head": Case((1, 1, 1, 17, 17, 16), SOME),
    "eight queries a key": Case((1, 8, 1, 18, 18, 16), SOME),
    "window": Case(mask=AttentionMask(causal=True, window=7)),
    "window both ways": Case((1, 2, 1, 40, 37, 16), AttentionMask(window=5)),
    "soft cap": Case((1, 2, 1, 20, 20, 16), SOME, {"softcap": 1.5, "scale": 0.5}),
    "sinks": Case((2, 4, 2, 21, 18, 16), SOME, sinks=True),
    "dropout": Case((2, 2, 1, 18, 33, 16), SOME, {"dropout": DROPPED}),
    "documents": Case(mask=AttentionMask(causal=True, documents=RUNS)),
    "documents both ways": Case(mask=AttentionMask(documents=RUNS)),
    "blocks": Case(
        (2, 2, 1, 50, 41, 16),
        AttentionMask(causal=True, blocks=blocks(2, 1, 4, 3), block_size=16),
    ),
    "blocks of heads": Case(
        (1, 4, 2, 37, 37, 16),
        AttentionMask(blocks=blocks(1, 4, 2, 2), block_size=32, documents=RUNS[:1]),
    ),
    "sequences": Case(
        (1, 2, 1, 40, 30, 16),
        AttentionMask(causal=True, sequences=packed((5, 0, 1, 34), (5, 3, 1, 21))),
        sinks=True,
    ),
    "sequences with all else": Case(
        (1, 2, 1, 40, 40, 16),
        AttentionMask(causal=True, window=9, sequences=packed((0, 17, 1, 22), (0, 17, 1, 22))),
        {"softcap": 2.0, "dropout": DROPPED},
    ),
}


def drawn(case: Case, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Queries, keys, values, and sinks where there are any."""
    batch, heads, key_heads, length, num_keys, dim = case.sizes
    generator = torch.Generator().manual_seed(sum(case.sizes))

    def one(count: int, tokens: int) -> Tensor:
        shape = (batch, count, tokens, dim)
        if case.mask.sequences is not None:
            shape = (tokens, count, dim)  # type: ignore[assignment]
        return torch.randn(shape, generator=generator).to(dtype).to(device)

    leaves = [one(heads, length), one(key_heads, num_keys), one(key_heads, num_keys)]
    if case.sinks:
        leaves.append(torch.randn(heads, generator=generator).to(device))
    return [leaf.requires_grad_() for leaf in leaves]


def results(
    compute: Callable[..., Any],
    leaves: list[Tensor],
    case: Case,
    upper: tuple[Tensor, Tensor] | None = None,
) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
    """The results and every gradient, and the gradients that came from above."""
    sinks = leaves[3] if case.sinks else None
    mask = case.mask.to(leaves[0].device)
    out, logs = compute(*leaves[:3], mask=mask, sinks=sinks, **case.options)
    finite = torch.where(torch.isfinite(logs), logs, 0.0)
    if upper is None:
        generator = torch.Generator().manual_seed(5)
        upper = (
            torch.randn(out.shape, generator=generator).to(out),
            torch.randn(logs.shape, generator=generator).to(logs),
        )
    total = (out * upper[0].to(out.dtype)).sum() + (finite * upper[1].to(logs.dtype)).sum()
    return [out, logs, *torch.autograd.grad(total, leaves)], upper


def exact_results(
    case: Case, leaves: list[Tensor], upper: tuple[Tensor, Tensor]
) -> dict[str, Tensor]:
    """In float64, of the same numbers."""
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact, _ = results(flash_attention_reference, wide, case, upper)
    return named(exact)


def named(found: list[Tensor]) -> dict[str, Tensor]:
    names = ("out", "log_sums", "dqueries", "dkeys", "dvalues", "dsinks")
    return dict(zip(names, found, strict=False))


def eager(
    queries: Tensor, keys: Tensor, values: Tensor, *, mask: AttentionMask, sinks: None = None
) -> tuple[Tensor, Tensor]:
    """As a model writes it out: every step rounds to the inputs' dtype but softmax."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = (one.repeat_interleave(group, 1) for one in (keys, values))
    scores = queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5
    rows, places = (torch.arange(one.shape[2], device=one.device) for one in (queries, keys))
    seen = visible(mask.band, rows, places, keys.shape[2] - queries.shape[2])
    scores = scores.masked_fill(~seen, float("-inf")).float()
    return scores.softmax(-1).to(queries.dtype) @ values, scores.logsumexp(-1)
