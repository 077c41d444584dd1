"""The Triton kernels give what the PyTorch reference gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.kernels.triton.conftest import filled_cache, packed_of

from ridgeline.kernels.paged_attention import (
    LayerCache,
    PackedTokens,
    paged_attention_reference,
    write_cache_reference,
)
from ridgeline.kernels.triton.paged_attention import paged_attention, write_cache

MIXED = [(1, 5), (1, 1), (7, 7), (3, 20), (1, 33)]
DECODES = [(1, 5), (1, 1), (1, 70), (1, 16)]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def closeness(
    lengths: list[tuple[int, int]],
    device: torch.device,
    *,
    heads: tuple[int, int] = (4, 2),
    dim: int = 16,
    block: int = 16,
    dtype: torch.dtype = torch.float32,
    stored: torch.dtype | None = None,
    fixed: bool = False,
    narrowed: dict[str, Any] | None = None,
    **options: object,
) -> None:
    num_blocks = sum(-(-context // block) for _, context in lengths) + 2
    packed = packed_of(lengths, block, device, num_blocks)
    packed = replace(packed, **(narrowed or {}))
    cache = filled_cache((num_blocks, heads[1], block, dim), dtype, stored, device, fixed=fixed)
    tokens = int(packed.query_starts[-1])
    draw = torch.Generator().manual_seed(3)
    queries = torch.randn(tokens, heads[0], dim, generator=draw).to(dtype).to(device)
    found = paged_attention(queries, cache, packed, scale=dim**-0.5, **options)
    wanted = paged_attention_reference(queries, cache, packed, scale=dim**-0.5, **options)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_decodes_with_split_keys(device: torch.device, dtype: torch.dtype) -> None:
    closeness([(1, 5), (1, 130)], device, dtype=dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_prompts_and_decodes_in_one_batch(device: torch.device, dtype: torch.dtype) -> None:
    closeness(MIXED, device, dtype=dtype, heads=(8, 4))


@pytest.mark.parametrize(
    ("heads", "dim", "block"), [((6, 2), 24, 16), ((7, 1), 80, 8), ((3, 3), 32, 5)], ids=str
)
def test_odd_heads_head_sizes_and_blocks(
    device: torch.device, heads: tuple[int, int], dim: int, block: int
) -> None:
    closeness([(1, 5), (9, 21)], device, heads=heads, dim=dim, block=block)


@pytest.mark.parametrize("window", [1, 6, 40])
@pytest.mark.parametrize("lengths", [[(1, 5), (1, 90)], [(1, 45), (20, 50)]], ids=str)
def test_a_sliding_window(
    device: torch.device, lengths: list[tuple[int, int]], window: int
) -> None:
    closeness(lengths, device, window=window, heads=(2, 2))


@pytest.mark.parametrize(("recent", "first"), [(None, 0), (3, 0), (3, 2), (30, 40)])
def test_trees_and_first_tokens(device: torch.device, recent: int | None, first: int) -> None:
    tree = [0b1, 0b11, 0b101, 0b1011, 0b10101, 0b101011, 0b1000101]
    seen = torch.tensor([0, *tree, 0, 0, 0, 0], device=device)
    narrowed = {"seen": seen, "recent": recent, "first": first}
    closeness([(1, 45), (7, 40), (4, 50)], device, heads=(4, 2), narrowed=narrowed)
    closeness([(1, 90), (1, 3)], device, narrowed={"recent": recent, "first": first})


@pytest.mark.parametrize("lengths", [[(1, 90)], MIXED], ids=str)
def test_a_softcap(device: torch.device, lengths: list[tuple[int, int]]) -> None:
    closeness(lengths, device, softcap=2.0, heads=(4, 4))


@pytest.mark.parametrize("lengths", [[(1, 90)], MIXED], ids=str)
def test_sinks(device: torch.device, lengths: list[tuple[int, int]]) -> None:
    sinks = torch.tensor([-1.0, 0.5, 2.0, 5.0], device=device)
    closeness(lengths, device, sinks=sinks, heads=(4, 4))


@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_quantised_cache(device: torch.device, dtype: torch.dtype, stored: torch.dtype) -> None:
    closeness([(1, 5), (1, 70)], device, dtype=dtype, stored=stored, heads=(2, 2))
    closeness([(1, 5), (9, 21)], device, dtype=dtype, stored=stored, heads=(4, 4))
    closeness([(1, 5), (9, 21)], device, dtype=dtype, stored=stored, heads=(4, 2), fixed=True)


def test_padding_gives_zeros_and_disturbs_nobody(device: torch.device) -> None:
    """As CUDA graphs pad: one query, no context, slot -1."""
    lengths = [*DECODES, (1, 0), (1, 0)]
    closeness(lengths, device, heads=(4, 4))
    packed = packed_of(lengths, 16, device, 12)
    cache = filled_cache((12, 4, 16, 16), torch.float32, None, device)
    queries = torch.randn(len(lengths), 4, 16, device=device)
    for sinks in (None, torch.ones(4, device=device)):
        found = paged_attention(queries, cache, packed, scale=1.0, sinks=sinks)
        assert found[len(DECODES) :].eq(0).all()
    before = cache.keys.clone(), cache.values.clone()
    nowhere = replace(packed, slots=torch.full_like(packed.slots, -1))
    write_cache(queries, queries, cache, nowhere)
    assert torch.equal(before[0], cache.keys)
    assert torch.equal(before[1], cache.values)


def test_a_longer_bound_of_the_context_changes_nothing(device: torch.device) -> None:
    """A graph is captured for the longest context and replayed for short ones."""
    packed = packed_of([(1, 5), (1, 30)], 16, device, 8)
    cache = filled_cache((8, 2, 16, 16), torch.float32, None, device)
    queries = torch.randn(2, 4, 16, device=device)
    short = paged_attention(queries, cache, packed, scale=0.3)
    long = paged_attention(queries, cache, replace(packed, max_context=4096), scale=0.3)
    torch.testing.assert_close(short, long, atol=2e-6, rtol=2e-6)


def test_queries_may_be_a_slice_of_a_fused_projection(device: torch.device) -> None:
    packed = packed_of([(3, 9)], 16, device, 4)
    cache = filled_cache((4, 2, 16, 16), torch.float32, None, device)
    fused = torch.randn(3, 8, 16, device=device)
    found = paged_attention(fused[:, :4], cache, packed, scale=0.3)
    wanted = paged_attention_reference(fused[:, :4], cache, packed, scale=0.3)
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("stored", [None, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("dim", [16, 24])
@pytest.mark.parametrize("fixed", [False, True], ids=["by-token", "fixed"])
def test_writing_stores_what_the_reference_stores(
    device: torch.device, stored: torch.dtype | None, dim: int, fixed: bool
) -> None:
    shape = (4, 2, 5, dim)
    packed = PackedTokens(*[torch.empty(0)] * 3, torch.tensor([3, -1, 19, 0, 7]), 1, 1)
    packed = replace(packed, slots=packed.slots.to(device))
    draw = torch.Generator().manual_seed(5)
    fused = torch.randn(5, 6, dim, generator=draw).to(torch.bfloat16)
    fused[3] = 0.0
    fused[0, 2, 3] = 40.0
    fused[0, 2, 4:8] = torch.tensor([0.001, 0.01, 0.05, 0.3])
    fused = fused.to(device)
    caches = []
    for write in (write_cache, write_cache_reference):
        scales = [None, None]
        if stored is not None:
            of = torch.tensor([0.003, 0.05]) if fixed else torch.ones(shape[:3])
            scales = [of.clone().to(device) for _ in "kv"]
        filled = [torch.ones(shape, device=device).to(stored or torch.bfloat16) for _ in "kv"]
        cache = LayerCache(*filled, *scales)
        write(fused[:, 2:4], fused[:, 4:], cache, packed)
        caches.append(cache)
    for name in ("keys", "values"):
        ours, theirs = (getattr(cache, name).float() for cache in caches)
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)
    if stored is not None:
        assert torch.equal(caches[0].key_scales, caches[1].key_scales)
        assert torch.equal(caches[0].value_scales, caches[1].value_scales)
