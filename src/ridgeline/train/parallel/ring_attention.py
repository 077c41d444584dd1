"""Causal attention over a sequence that lies on several ranks: keys and values go round a ring.

Liu et al., "Ring attention with blockwise transformers", arXiv 2310.01889. Every rank keeps its
queries; in each of cp steps it attends to the keys and values that one rank holds, while the next
ones are already on their way. The partial results are merged by their log-sum-exp (Dao et al.,
arXiv 2205.14135, section 3.1, and Milakov and Gimelshein, arXiv 1805.02867):

    lse = log(e^lse₁ + e^lse₂)        out = e^(lse₁ − lse) out₁ + e^(lse₂ − lse) out₂

Backward goes round once more: with the final output and log-sum-exp, each block's own backward
gives its share of every gradient; those of keys and values travel on with them and arrive home
after cp steps.

Why a ring and no all-gather of keys and values (Llama 3, arXiv 2407.21783, section 3.3.2, gathers):
memory for keys and values stays at two blocks, however long the sequence, and each transfer hides
behind a block of attention. The gather's advantage, any mask, is had here too: documents are told
apart by where they begin.

Tokens lie zig-zag (`context.py`): of S/cp tokens a rank has, the first half is its chunk from the
front, the second that from the back. Of another rank's keys, then, either all queries see the first
half (it is earlier in the ring), or the second half of the queries sees all (it is later): each
step does the same work on every rank, and nothing that causality hides is computed.

Each block is torch's own flash attention (Dao, arXiv 2307.08691) in both directions, called below
autograd: backward takes an output and a log-sum-exp that may cover more keys than this block's, and
then gives this block's share of the gradients, since the probabilities it recomputes are
exp(scores − lse). The kernel for CUDA takes no mask.

Shapes: B sequences, H heads, G key-value heads (H a multiple of G), T = S/cp tokens, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ridgeline.errors import InputError

_ALL = slice(None)
_aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The ranks that share a sequence."""

    group: dist.ProcessGroup
    rank: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBlock:
    """Which of this rank's queries see which of another rank's keys."""

    queries: slice
    keys: slice
    causal: bool


def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ring: Ring,
    *,
    scale: float,
    starts: Tensor | None = None,
) -> Tensor:
    """The attention of this rank's queries to all earlier tokens, [B, H, T, D] as the queries.

    Args:
        query: [B, H, T, D], zig-zag.
        key: [B, G, T, D].
        value: [B, G, T, D].
        ring: The ranks that share the sequence.
        scale: On the scores.
        starts: [cp, B, T]: of every rank's tokens, where in the sequence its document begins; no
            token sees another document. None: there is but one.
    """
    result: Tensor = _RingAttention.apply(query, key, value, ring, scale, starts)
    return result


def block_of(rank: int, source: int, tokens: int) -> SeenBlock:
    """What a rank computes when it has the keys of `source`."""
    half = tokens // 2
    if source == rank:
        # Both chunks of each are in order of the sequence: the usual triangle.
        return SeenBlock(queries=_ALL, keys=_ALL, causal=True)
    if source < rank:
        return SeenBlock(queries=_ALL, keys=slice(0, half), causal=False)
    return SeenBlock(queries=slice(half, tokens), keys=_ALL, causal=False)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        ring: Ring,
        scale: float,
        starts: Tensor | None,
    ) -> Tensor:
        query, key, value = (one.contiguous() for one in (query, key, value))
        output = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
        lse = torch.full(query.shape[:3], -torch.inf, dtype=torch.float32, device=query.device)
        held = torch.stack([key, value])
        for step in range(ring.size):
            source = (ring.rank - step) % ring.size
            coming = _pass_on(held, ring) if step < ring.size - 1 else None
            block = block_of(ring.rank, source, query.shape[2])
            part = query[:, :, block.queries]
            mask = _documents(starts, ring.rank, source, block)
            found = attend_block(
                part,
                held[0][:, :, block.keys],
                held[1][:, :, block.keys],
                causal=block.causal,
                mask=mask,
                scale=scale,
            )
            _merge(output[:, :, block.queries], lse[:, :, block.queries], found)
            if coming is not None:
                held = coming.wait()
        result = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, result, lse)
        ctx.ring, ctx.scale, ctx.starts = ring, scale, starts
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, result, lse = ctx.saved_tensors
        ring: Ring = ctx.ring
        upstream = gradients[0].contiguous()
        of_query = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
        held = torch.stack([key, value])
        # What travels with the keys and values: their gradients so far.
        of_held = torch.zeros(held.shape, dtype=torch.float32, device=query.device)
        returning: _Coming | None = None
        for step in range(ring.size):
            source = (ring.rank - step) % ring.size
            coming = _pass_on(held, ring) if step < ring.size - 1 else None
            block = block_of(ring.rank, source, query.shape[2])
            seen = (slice(None), slice(None), block.queries)
            keys = (slice(None), slice(None), block.keys)
            found = block_gradients(
                upstream[seen],
                query[seen],
                held[0][keys],
                held[1][keys],
                BlockResult(output=result[seen], lse=lse[seen]),
                causal=block.causal,
                mask=_documents(ctx.starts, ring.rank, source, block),
                scale=ctx.scale,
            )
            of_query[seen] += found.query
            # Gradients go one step behind their keys, and arrive while this block is computed; the
            # last step sends them home.
            if returning is not None:
                of_held = returning.wait()
            of_held[0][keys] += found.key
            of_held[1][keys] += found.value
            returning = _pass_on(of_held, ring)
            if coming is not None:
                held = coming.wait()
        assert returning is not None
        of_held = returning.wait()
        return (
            of_query.to(query.dtype),
            of_held[0].to(key.dtype),
            of_held[1].to(value.dtype),
            None,
            None,
            None,
        )


def _merge(output: Tensor, lse: Tensor, found: BlockResult) -> None:
    """Add a block's result to what is there, in place."""
    both = torch.logaddexp(lse, found.lse)
    # Queries that have seen nothing yet (-inf) weigh nothing: -inf minus itself would be nan.
    safe = torch.where(both.isinf(), 0.0, both)
    output.mul_((lse - safe).exp_().unsqueeze(-1))
    output.add_(found.output.float() * (found.lse - safe).exp_().unsqueeze(-1))
    lse.copy_(both)


def _documents(starts: Tensor | None, rank: int, source: int, block: SeenBlock) -> Tensor | None:
    """Which key each query may see for being of its document: [B, 1, queries, keys]."""
    if starts is None:
        return None
    of_query = starts[rank][:, block.queries]
    of_key = starts[source][:, block.keys]
    return (of_query[:, :, None] == of_key[:, None, :])[:, None]


class _Coming:
    """A tensor that is on its way from the rank before; keeps alive what is being sent."""

    def __init__(self, tensor: Tensor, sent: Tensor, works: list[dist.Work]) -> None:
        self._tensor, self._sent, self._works = tensor, sent, works

    def wait(self) -> Tensor:
        for work in self._works:
            work.wait()
        return self._tensor


def _pass_on(tensor: Tensor, ring: Ring) -> _Coming:
    """Send to the next rank, receive from the one before; both at once."""
    received = torch.empty_like(tensor)
    after, before = (ring.rank + 1) % ring.size, (ring.rank - 1) % ring.size
    operations = [
        dist.P2POp(dist.isend, tensor, group=ring.group, group_peer=after),
        dist.P2POp(dist.irecv, received, group=ring.group, group_peer=before),
    ]
    return _Coming(received, tensor, dist.batch_isend_irecv(operations))


class BlockResult(NamedTuple):
    """Output [B, H, Q, D] and log-sum-exp [B, H, Q] in fp32; -inf where a query sees no key."""

    output: Tensor
    lse: Tensor


class BlockGradients(NamedTuple):
    """The gradients of queries, keys and values."""

    query: Tensor
    key: Tensor
    value: Tensor


def attend_block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    mask: Tensor | None,
    scale: float,
) -> BlockResult:
    """Attend to one block of keys; `mask` [B, 1, Q, K] is true where a key is seen."""
    groups = query.shape[1] // key.shape[1]
    key, value = _for_each_head(key, groups), _for_each_head(value, groups)
    if query.device.type == "cpu":
        seen = _with_triangle(mask, causal)
        output, lse = _aten._scaled_dot_product_flash_attention_for_cpu(
            query,
            key,
            value,
            is_causal=causal and mask is None,
            attn_mask=_bias(seen, query.dtype),
            scale=scale,
        )
        if seen is not None:
            nothing = ~seen.any(dim=-1)
            lse = lse.masked_fill(nothing, -torch.inf)
        return BlockResult(output, lse)
    _refuse_on_cuda(query, mask)
    found = _aten._scaled_dot_product_flash_attention(
        query, key, value, is_causal=causal, scale=scale
    )
    return BlockResult(found[0], found[1])


def block_gradients(
    upstream: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    result: BlockResult,
    *,
    causal: bool,
    mask: Tensor | None,
    scale: float,
) -> BlockGradients:
    """This block's share of the gradients, given the output and log-sum-exp over all keys."""
    groups = query.shape[1] // key.shape[1]
    each_key, each_value = _for_each_head(key, groups), _for_each_head(value, groups)
    if query.device.type == "cpu":
        seen = _with_triangle(mask, causal)
        found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            upstream,
            query,
            each_key,
            each_value,
            result.output,
            result.lse,
            0.0,
            causal and mask is None,
            attn_mask=_bias(seen, query.dtype),
            scale=scale,
        )
    else:
        none = torch.empty(0, dtype=torch.int64, device=query.device)
        found = _aten._scaled_dot_product_flash_attention_backward(
            upstream.contiguous(),
            query.contiguous(),
            each_key.contiguous(),
            each_value.contiguous(),
            result.output.contiguous(),
            result.lse.contiguous(),
            none,
            none,
            query.shape[2],
            key.shape[2],
            0.0,
            causal,
            none,
            none,
            scale=scale,
        )
    return BlockGradients(found[0], _over_heads(found[1], groups), _over_heads(found[2], groups))


def _for_each_head(tensor: Tensor, groups: int) -> Tensor:
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=1)


def _over_heads(gradient: Tensor, groups: int) -> Tensor:
    """The sum over the query heads that share a key-value head, in fp32."""
    return gradient if groups == 1 else gradient.float().unflatten(1, (-1, groups)).sum(dim=2)


def _with_triangle(mask: Tensor | None, causal: bool) -> Tensor | None:
    """The kernel takes a mask or makes a triangle, not both."""
    if mask is None or not causal:
        return mask
    triangle = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()
    return mask & triangle


def _bias(seen: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores: nothing, or minus infinity."""
    if seen is None:
        return None
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def _refuse_on_cuda(query: Tensor, mask: Tensor | None) -> None:
    """What torch's flash attention for CUDA does not do."""
    if mask is not None:
        raise InputError(
            "data.document_mask with layout.cp > 1 works on CPUs alone so far: the CUDA kernel"
            " takes no mask; leave one of the two out"
        )
    if query.dtype not in {torch.bfloat16, torch.float16} or query.shape[-1] % 8:
        raise InputError(
            "layout.cp on CUDA: flash attention takes bf16 or fp16 and head sizes that are"
            f" multiples of 8, not {query.dtype} of {query.shape[-1]}; use bf16"
        )
