"""Attention over a KV cache in blocks, for packed sequences: prefill chunks and decodes mixed.

Sequence s has queries q[query_starts[s] : query_starts[s+1]], which are the last tokens of its
context of `context_lengths[s]` tokens (their own keys are in the cache already):

    out_i = Σ_j softmax_j(scale · q_i·k_j) v_j    over j ≤ position of i (and j > i − window)

Key j of sequence s lies in block `block_tables[s, j // B]` at slot `j % B` (Kwon et al., "Efficient
memory management for LLM serving with PagedAttention", 2309.06180, section 4.1). Query head h reads
key head h // (H / KV) (grouped queries, 2305.13245).

Two things narrow what a query sees. Guesses that branch are queries of a tree: each sees what was
there before the tree, its ancestors and itself (Miao et al., "SpecInfer", 2305.09781, section 4.2).
And beside its window a query may see the first tokens of its sequence, whose keys take up the
weight that has nowhere to go (Xiao et al., "StreamingLLM", 2309.17453, section 3).

Shapes: T tokens, H query heads, KV key-value heads, D head size, N blocks, B tokens a block,
S sequences, M blocks of the longest sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.kernels.cpu.build import ensure_loaded
from ridgeline.kernels.gathered_attention import gathered_attention

_OPERATORS = torch.library.Library("ridgeline", "FRAGMENT")
_OPERATORS.define(
    "paged_attention(Tensor queries, Tensor keys, Tensor values, Tensor? key_scales, "
    "Tensor? value_scales, Tensor query_starts, Tensor context_lengths, Tensor block_tables, "
    "float scale, int? window, float? softcap, Tensor? sinks, Tensor? seen, int first) -> Tensor"
)
_OPERATORS.define(
    "write_cache(Tensor keys, Tensor values, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor(c!)? key_scales, Tensor(d!)? value_scales, Tensor slots) -> ()"
)


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer.

    `keys`, `values`: [N, KV, B, D], in the model's dtype, or float8_e4m3fn or int8 with scales:
    value = stored · scale.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    """The scales of keys, float32: [N, KV, B], one per token and head, taken as it is written; or
    [KV], fixed beforehand (calibration), with numbers beyond it cut."""
    value_scales: Tensor | None = None
    """The scales of values, of the same kind."""


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """Which tokens belong to whom, and what they see; on the queries' device.

    All int32 but `slots` and `seen` (int64).
    """

    query_starts: Tensor
    """Where each sequence's queries begin, and where the last one's end, [S + 1]."""
    context_lengths: Tensor
    """[S], the queries included."""
    block_tables: Tensor
    """[S, M]; entries beyond a context are not read."""
    slots: Tensor
    """Where each token's key goes, [T]: block · B + offset; -1: nowhere (padding)."""
    max_queries: int
    """The most queries of one sequence; 1: all decode."""
    max_context: int
    seen: Tensor | None = None
    """What queries of trees see from their sequence's first query on, [T]: bit i for query i; each
    has bits of its own, its ancestors and the root, all before it. 0: no tree; None: nowhere."""
    recent: int | None = None
    """The window of layers that have none of their own; None: none."""
    first: int = 0
    """The tokens at the beginning of a sequence that such layers see beside it."""

    def sight(self, window: int | None) -> tuple[int | None, int]:
        """The window of a layer whose own is given, and the first tokens seen beside it."""
        if self.recent is None:
            return window, 0
        return (self.recent, self.first) if window is None else (min(window, self.recent), 0)


def write_cache(keys: Tensor, values: Tensor, cache: LayerCache, packed: PackedTokens) -> None:
    """Store [T, KV, D] keys and values at `packed.slots`, quantised where the cache is."""
    if keys.is_cuda:
        from ridgeline.kernels.triton import paged_attention as triton

        triton.write_cache(keys, values, cache, packed)
        return
    ensure_loaded()
    torch.ops.ridgeline.write_cache(
        _dense(keys),
        _dense(values),
        cache.keys,
        cache.values,
        cache.key_scales,
        cache.value_scales,
        packed.slots,
    )


def paged_attention(
    queries: Tensor,
    cache: LayerCache,
    packed: PackedTokens,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """[T, H, D] queries to [T, H, D] outputs, in the queries' dtype.

    Args:
        queries: Rotary position embedding already applied.
        cache: The cache of this layer, with the queries' own keys written.
        packed: Which query belongs to which sequence.
        scale: The factor of the scores.
        window: Each query sees this many last tokens, itself among them; None: what `packed` says.
        softcap: c · tanh(score / c) instead of the score (Gemma 2).
        sinks: [H] extra logits that take weight from all tokens (GPT-OSS).
    """
    if queries.is_cuda:
        from ridgeline.kernels.triton import paged_attention as triton

        return triton.paged_attention(
            queries, cache, packed, scale=scale, window=window, softcap=softcap, sinks=sinks
        )
    ensure_loaded()
    window, beside = packed.sight(window)
    return torch.ops.ridgeline.paged_attention(
        _dense(queries),
        cache.keys,
        cache.values,
        cache.key_scales,
        cache.value_scales,
        packed.query_starts,
        packed.context_lengths,
        packed.block_tables,
        scale,
        window,
        softcap,
        None if sinks is None else sinks.float(),
        packed.seen,
        beside,
    )


def _dense(heads: Tensor) -> Tensor:
    """With the elements of a head side by side; tokens and heads may lie as they are."""
    return heads if heads.stride(-1) == 1 else heads.contiguous()


def _write_in_torch(
    keys: Tensor,
    values: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    slots: Tensor,
) -> None:
    most = key_cache.shape[0] * key_cache.shape[2]
    if slots.numel() and int(slots.max()) >= most:
        raise RuntimeError(f"write_cache: slot {int(slots.max())} of {most}")
    _write(keys, values, LayerCache(key_cache, value_cache, key_scales, value_scales), slots)


# Where the CPU kernels are loaded, theirs come before these.
_OPERATORS.impl("write_cache", _write_in_torch, "CompositeExplicitAutograd")
_OPERATORS.impl("paged_attention", gathered_attention, "CompositeExplicitAutograd")


@torch.library.register_fake("ridgeline::paged_attention")
def _paged_attention_shape(queries: Tensor, *_: object) -> Tensor:
    return queries.new_empty(queries.shape)


@torch.library.register_fake("ridgeline::write_cache")
def _write_cache_shape(*_: object) -> None:
    return None


def write_cache_reference(
    keys: Tensor, values: Tensor, cache: LayerCache, packed: PackedTokens
) -> None:
    """Step by step in PyTorch."""
    _write(keys, values, cache, packed.slots)


def _write(keys: Tensor, values: Tensor, cache: LayerCache, slots: Tensor) -> None:
    num_kv, block = cache.keys.shape[1], cache.keys.shape[2]
    kept = slots >= 0
    slots = slots[kept]
    where = (slots // block, slice(None), slots % block)
    for new, stored, scales in (
        (keys[kept], cache.keys, cache.key_scales),
        (values[kept], cache.values, cache.value_scales),
    ):
        if scales is None:
            stored[where] = new.to(stored.dtype)
            continue
        largest = 127.0 if stored.dtype == torch.int8 else torch.finfo(stored.dtype).max
        scale = scales
        if scales.ndim > 1:
            # On a GPU torch multiplies by the reciprocal of a number, and divides by a tensor.
            divisor = torch.full((), largest, device=new.device)
            scale = scales[where] = new.float().abs().amax(-1).clamp_min(1e-12) / divisor
        lowest = -128.0 if stored.dtype == torch.int8 else -largest
        scaled = (new.float() / scale[..., None]).clamp(lowest, largest)
        stored[where] = (scaled.round() if stored.dtype == torch.int8 else scaled).to(stored.dtype)
    assert num_kv == keys.shape[1]


def paged_attention_reference(
    queries: Tensor,
    cache: LayerCache,
    packed: PackedTokens,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Sequence by sequence in float32, gathering its whole cache."""
    out = torch.empty_like(queries)
    group = queries.shape[1] // cache.keys.shape[1]
    block = cache.keys.shape[2]
    window, beside = packed.sight(window)
    starts = packed.query_starts.tolist()
    for index, length in enumerate(packed.context_lengths.tolist()):
        first, last = starts[index], starts[index + 1]
        if first == last:
            continue
        table = packed.block_tables[index, : -(-length // block)].long()
        keys = _gathered(cache.keys, cache.key_scales, table)[:, :length]
        values = _gathered(cache.values, cache.value_scales, table)[:, :length]
        keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
        scores = torch.einsum("thd,hjd->htj", queries[first:last].float(), keys) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        visible = _visible(packed, first, last, length, window, beside)
        scores = scores.masked_fill(~visible, float("-inf"))
        if sinks is not None:
            extra = sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)
            weights = torch.cat((scores, extra), -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        out[first:last] = torch.einsum("htj,hjd->thd", weights, values).to(out.dtype)
    return out


def _visible(
    packed: PackedTokens, first: int, last: int, length: int, window: int | None, beside: int
) -> Tensor:
    """[last - first, length]: which key each query of a sequence sees."""
    root = length - (last - first)
    places = torch.arange(length).expand(last - first, -1).clone()
    at = torch.arange(root, length)
    visible = places <= at[:, None]
    for row, path in enumerate([] if packed.seen is None else packed.seen[first:last].tolist()):
        if path:
            bits = [bit for bit in range(last - first) if path >> bit & 1]
            at[row] = root + len(bits) - 1
            visible[row, root:] = False
            for depth, bit in enumerate(bits):
                visible[row, root + bit] = True
                places[row, root + bit] = root + depth
    if window is not None:
        visible &= (places > at[:, None] - window) | (places < beside)
    return visible.to(packed.context_lengths.device)


def _gathered(stored: Tensor, scales: Tensor | None, table: Tensor) -> Tensor:
    """[KV, len(table) · B, D] in float32."""
    taken = stored[table].float()
    if scales is not None:
        taken = taken * (scales[table] if scales.ndim > 1 else scales[:, None])[..., None]
    return taken.transpose(0, 1).flatten(1, 2)
