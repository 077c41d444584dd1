"""Paged attention and the cache's writes against their references, and what their numbers keep."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from ridgeline.kernels.paged_attention import (
    LayerCache,
    PackedTokens,
    paged_attention,
    paged_attention_reference,
    write_cache,
    write_cache_reference,
)

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
QUANTISED = (torch.int8, torch.float8_e4m3fn)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Case:
    """Queries, and a cache with all keys written."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    cache: LayerCache
    packed: PackedTokens

    def attend(self, **arguments: object) -> Tensor:
        arguments.setdefault("scale", self.queries.shape[-1] ** -0.5)
        return paged_attention(self.queries, self.cache, self.packed, **arguments)

    def reference(self, **arguments: object) -> Tensor:
        arguments.setdefault("scale", self.queries.shape[-1] ** -0.5)
        return paged_attention_reference(self.queries, self.cache, self.packed, **arguments)


def empty_cache(
    num_blocks: int,
    kv_heads: int,
    block: int,
    size: int,
    dtype: torch.dtype,
    *,
    fixed: bool = False,
) -> LayerCache:
    """Of rubbish: what a kernel reads without having written it shows."""
    shape = (num_blocks, kv_heads, block, size)
    rubbish = 127 if dtype == torch.int8 else float("nan")
    stored = [torch.full(shape, rubbish).to(dtype) for _ in range(2)]
    if dtype not in QUANTISED:
        return LayerCache(*stored)
    if fixed:
        most = 2.5 / (127.5 if dtype == torch.int8 else 448.0)  # some numbers lie beyond
        return LayerCache(*stored, *(torch.linspace(most, 1.3 * most, kv_heads) for _ in range(2)))
    return LayerCache(*stored, *(torch.full(shape[:-1], float("nan")) for _ in range(2)))


def case(
    sequences: list[tuple[int, int]],
    *,
    kv_heads: int = 2,
    group: int = 2,
    size: int = 32,
    block: int = 16,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    fixed: bool = False,
    seed: int = 0,
) -> Case:
    """Sequences of (queries, context) over shuffled blocks."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-context // block) for _, context in sequences]
    blocks = torch.randperm(sum(counts) + 2, generator=generator).tolist()
    tables = torch.full((len(sequences), max(counts)), -1, dtype=torch.int32)
    slots, starts = [], [0]
    for index, (queries, context) in enumerate(sequences):
        own = torch.tensor([blocks.pop() for _ in range(counts[index])], dtype=torch.int32)
        tables[index, : len(own)] = own
        position = torch.arange(context)
        slots.append(own.long()[position // block] * block + position % block)
        starts.append(starts[-1] + queries)
    packed = PackedTokens(
        query_starts=torch.tensor(starts, dtype=torch.int32),
        context_lengths=torch.tensor([context for _, context in sequences], dtype=torch.int32),
        block_tables=tables,
        slots=torch.cat(slots),
        max_queries=max(queries for queries, _ in sequences),
        max_context=max(context for _, context in sequences),
    )
    shape = (len(packed.slots), kv_heads, size)
    keys, values = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    cache = empty_cache(sum(counts) + 2, kv_heads, block, size, kv_dtype or dtype, fixed=fixed)
    write_cache(keys, values, cache, packed)
    queries = torch.randn(starts[-1], kv_heads * group, size, generator=generator).to(dtype)
    return Case(queries, keys, values, cache, packed)


sequence = st.integers(1, 300).flatmap(
    lambda context: st.tuples(
        st.one_of(st.just(1), st.just(context), st.integers(1, context)), st.just(context)
    )
)
sequences = st.lists(sequence, min_size=1, max_size=5)
sizes = st.sampled_from([32, 64, 80, 96, 128, 256, 20])


@settings(max_examples=60, deadline=None)
@given(
    sequences, st.integers(1, 3), st.integers(1, 8), sizes, st.integers(1, 32),
    st.none() | st.integers(1, 200), st.none() | st.floats(1.0, 50.0), st.booleans(),
    st.integers(0, 2**31),
)  # fmt: skip
def test_float32_is_the_reference_to_1e_5(
    mix: list[tuple[int, int]], kv_heads: int, group: int, size: int, block: int,
    window: int | None, softcap: float | None, has_sinks: bool, seed: int,
) -> None:  # fmt: skip
    made = case(mix, kv_heads=kv_heads, group=group, size=size, block=block, seed=seed)
    sinks = torch.randn(kv_heads * group) if has_sinks else None
    options = {"window": window, "softcap": softcap, "sinks": sinks}
    found, expected = made.attend(**options), made.reference(**options)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    sequences, st.integers(1, 5), sizes, st.integers(1, 32), st.none() | st.integers(1, 200),
    st.sampled_from(list(TOLERANCE)), st.sampled_from([None, *QUANTISED]), st.booleans(),
    st.integers(0, 2**31),
)  # fmt: skip
def test_every_type_is_the_reference_to_its_rounding(
    mix: list[tuple[int, int]], group: int, size: int, block: int, window: int | None,
    dtype: torch.dtype, kv_dtype: torch.dtype | None, fixed: bool, seed: int,
) -> None:  # fmt: skip
    made = case(
        mix, group=group, size=size, block=block, dtype=dtype, kv_dtype=kv_dtype, fixed=fixed,
        seed=seed,
    )  # fmt: skip
    close = TOLERANCE[dtype]
    torch.testing.assert_close(
        made.attend(window=window), made.reference(window=window), rtol=close, atol=close
    )


def in_trees(made: Case, seed: int, *, share: float = 0.7) -> Case:
    """The same with most of the sequences of up to 64 queries made trees at random."""
    chance = random.Random(seed)
    starts = made.packed.query_starts.tolist()
    seen = torch.zeros(starts[-1], dtype=torch.int64)
    for first, last in pairwise(starts):
        if last - first > 64 or chance.random() > share:
            continue
        paths = [1]
        for node in range(1, last - first):
            paths.append(paths[chance.randrange(node)] | 1 << node)
        seen[first:last] = torch.tensor(paths, dtype=torch.uint64).view(torch.int64)
    return replace(made, packed=replace(made.packed, seen=seen))


trees = st.lists(
    st.integers(1, 64).flatmap(
        lambda queries: st.tuples(st.just(queries), st.integers(queries, queries + 200))
    ),
    min_size=1,
    max_size=4,
)
narrow = st.sampled_from([(None, 0), (3, 0), (40, 0), (3, 2), (30, 150), (70, 5)])
"""What `PackedTokens` says of windows: recent tokens, and the first ones beside them."""


@settings(max_examples=60, deadline=None)
@given(
    trees, st.integers(1, 4), st.integers(1, 32), narrow, st.none() | st.integers(1, 200),
    st.none() | st.floats(1.0, 50.0), st.sampled_from([None, torch.int8]), st.integers(0, 2**31),
)  # fmt: skip
@example([(40, 150)], 2, 16, (None, 0), None, None, None, 0)  # across two blocks of the kernel
@example([(40, 150)], 2, 16, (30, 2), None, None, None, 0)
@example([(64, 170), (30, 400)], 2, 16, (None, 0), 25, None, None, 1)
def test_queries_of_trees_see_their_ancestors_alone(
    mix: list[tuple[int, int]], group: int, block: int, sees: tuple[int | None, int],
    window: int | None, softcap: float | None, kv_dtype: torch.dtype | None, seed: int,
) -> None:  # fmt: skip
    made = in_trees(case(mix, group=group, block=block, kv_dtype=kv_dtype, seed=seed), seed)
    made.packed = replace(made.packed, recent=sees[0], first=sees[1])
    options = {"window": window, "softcap": softcap}
    found, expected = made.attend(**options), made.reference(**options)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("sees", [(None, 0), (4, 0), (4, 3), (90, 199)])
def test_a_path_through_a_tree_is_the_same_path_as_a_chain(sees: tuple[int | None, int]) -> None:
    made = case([(5, 200)], block=8)
    made.packed = replace(made.packed, recent=sees[0], first=sees[1])
    chain = made.attend()
    # The same tokens in another order: the tree has 0-1-2 of the chain, and 3 and 4 before 1.
    order = [0, 3, 4, 1, 2]
    slots = made.packed.slots[-5:]
    for stored in (made.cache.keys, made.cache.values):
        rows = stored[slots[order] // 8, :, slots[order] % 8]
        stored[slots // 8, :, slots % 8] = rows
    seen = torch.tensor([0b1, 0b11, 0b101, 0b1001, 0b11001])
    made.packed = replace(made.packed, seen=seen)
    tree = replace(made, queries=made.queries[order]).attend()
    torch.testing.assert_close(tree[[0, 3, 4]], chain[:3], rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(sequences, st.integers(1, 60), st.integers(0, 40), st.integers(1, 32), st.integers(0, 2**31))
def test_recent_and_first_tokens_are_dense_attention_under_a_mask(
    mix: list[tuple[int, int]], recent: int, beside: int, block: int, seed: int
) -> None:
    made = case(mix, block=block, seed=seed)
    made.packed = replace(made.packed, recent=recent, first=beside)
    found = made.attend()
    queries, keys = made.queries.split([queries for queries, _ in mix]), 0
    for (count, context), mine in zip(mix, queries, strict=True):
        own = slice(keys, keys + context)
        at = torch.arange(context - count, context)[:, None] - torch.arange(context)
        mask = (at >= 0) & ((at < recent) | (torch.arange(context) < beside))
        dense = functional.scaled_dot_product_attention(
            mine.transpose(0, 1)[None], made.keys[own].transpose(0, 1)[None],
            made.values[own].transpose(0, 1)[None], mask, enable_gqa=True,
        )[0].transpose(0, 1)  # fmt: skip
        torch.testing.assert_close(found[:count], dense, rtol=2e-5, atol=2e-5)
        found, keys = found[count:], keys + context


def test_it_is_dense_attention_in_double_precision() -> None:
    made = case([(70, 70)], kv_heads=2, group=3, size=48)
    dense = [one.double().transpose(0, 1)[None] for one in (made.queries, made.keys, made.values)]
    expected = functional.scaled_dot_product_attention(*dense, is_causal=True, enable_gqa=True)
    found = made.attend().double().transpose(0, 1)[None]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fixed", [False, True], ids=["by-token", "fixed"])
@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn, torch.bfloat16])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_the_cache_holds_what_the_reference_stores(
    dtype: torch.dtype, kv_dtype: torch.dtype, fixed: bool
) -> None:
    made = case([(5, 37), (1, 20)], size=40, dtype=dtype, kv_dtype=kv_dtype)
    made.keys[3] = 0.0
    made.keys[4, :, 7:] = 1e-30
    made.values[4, :, :3] = torch.tensor([3e4, -3e4, 2.6])
    slots = made.packed.slots.clone()
    slots[5::7] = -1
    packed = replace(made.packed, slots=slots)
    blocks = len(made.cache.keys)
    caches = [empty_cache(blocks, 2, 16, 40, kv_dtype, fixed=fixed) for _ in range(2)]
    write_cache(made.keys, made.values, caches[0], packed)
    write_cache_reference(made.keys, made.values, caches[1], packed)
    for found, expected in zip(*(
        (cache.keys, cache.values, cache.key_scales, cache.value_scales) for cache in caches
    ), strict=True):  # fmt: skip
        if expected is not None:
            assert found is not None
            assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


@settings(max_examples=20, deadline=None)
@given(
    sequences, st.integers(1, 5), st.sampled_from([20, 64, 96]), st.integers(1, 32),
    st.none() | st.integers(1, 200), st.sampled_from(QUANTISED), st.integers(0, 2**31),
)  # fmt: skip
def test_fixed_scales_give_attention_in_double_precision_over_what_is_stored(
    mix: list[tuple[int, int]], group: int, size: int, block: int, window: int | None,
    kv_dtype: torch.dtype, seed: int,
) -> None:  # fmt: skip
    made = case(mix, group=group, size=size, block=block, kv_dtype=kv_dtype, fixed=True, seed=seed)
    assert made.cache.key_scales is not None
    assert made.cache.value_scales is not None
    expected, first = [], 0
    for index, (queries, context) in enumerate(mix):
        table = made.packed.block_tables[index, : -(-context // block)].long()
        keys, values = (
            stored[table].to(torch.float32).double().transpose(0, 1).flatten(1, 2)[:, :context]
            * scales.double()[:, None, None]
            for stored, scales in (
                (made.cache.keys, made.cache.key_scales),
                (made.cache.values, made.cache.value_scales),
            )
        )
        asked = made.queries[first : first + queries].double().transpose(0, 1)
        at = torch.arange(context - queries, context)[:, None] - torch.arange(context)
        seen = (at >= 0) & (at < (window or context))
        expected.append(
            functional.scaled_dot_product_attention(
                asked[None], keys[None], values[None], seen, enable_gqa=True
            )[0].transpose(0, 1)
        )
        first += queries
    found = made.attend(window=window).double()
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-5, atol=1e-5)


def test_keys_are_taken_where_they_lie() -> None:
    made = case([(6, 6)])
    both = torch.cat((made.keys, made.values), 1)
    again = empty_cache(len(made.cache.keys), 2, 16, 32, torch.float32)
    write_cache(both[:, :2], both[:, 2:], again, made.packed)
    assert torch.equal(again.keys.nan_to_num(), made.cache.keys.nan_to_num())
    assert torch.equal(again.values.nan_to_num(), made.cache.values.nan_to_num())
    padded = torch.cat((made.queries, made.queries), 2)[..., :32]
    strided = Case(padded, made.keys, made.values, made.cache, made.packed)
    assert torch.equal(strided.attend(), made.attend())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_the_number_of_threads_changes_no_bit(dtype: torch.dtype, threads: int) -> None:
    for mix in ([(1, 1500)], [(1, 700), (90, 90), (1, 5), (200, 900)]):
        made = case(mix, size=64, dtype=dtype, kv_heads=1)
        alone = made.attend(window=600)
        torch.set_num_threads(threads)
        assert torch.equal(made.attend(window=600), alone)
        torch.set_num_threads(1)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(sequence, min_size=2, max_size=4), st.sampled_from([1, 3]),
    st.sampled_from([torch.float32, torch.bfloat16]), st.none() | st.integers(1, 200), st.data(),
)  # fmt: skip
def test_a_token_gets_the_same_bits_alone_in_a_batch_and_in_chunks(
    mix: list[tuple[int, int]], group: int, dtype: torch.dtype, window: int | None,
    data: st.DataObject,
) -> None:  # fmt: skip
    made = case(mix, group=group, dtype=dtype)
    whole = made.attend(window=window)
    index = data.draw(st.integers(0, len(mix) - 1))
    queries, context = mix[index]
    token = data.draw(st.integers(0, queries - 1))
    at = int(made.packed.query_starts[index]) + token
    alone = replace(
        made.packed,
        query_starts=torch.tensor([0, 1], dtype=torch.int32),
        context_lengths=torch.tensor([context - queries + token + 1], dtype=torch.int32),
        block_tables=made.packed.block_tables[index : index + 1],
    )
    one = paged_attention(
        made.queries[at : at + 1], made.cache, alone, scale=32**-0.5, window=window
    )
    assert torch.equal(one[0], whole[at])


def test_blocks_before_the_window_are_not_read() -> None:
    made = case([(1, 300)], block=8)
    expected = made.attend(window=50)
    tables = made.packed.block_tables.clone()
    for lost in tables[0, : (300 - 50) // 8].tolist():
        made.cache.keys[lost] = made.cache.values[lost] = float("nan")
    tables[0, : (300 - 50) // 8] = -1
    made.packed = replace(made.packed, block_tables=tables)
    assert torch.equal(made.attend(window=50), expected)


def test_rows_of_padding_are_zeros() -> None:
    made = case([(3, 10)])
    made.queries = torch.cat((made.queries, made.queries))
    assert not made.attend()[3:].any()


def test_a_sequence_without_queries_takes_no_part() -> None:
    made = case([(3, 10)])
    expected = made.attend()
    made.packed = replace(
        made.packed,
        query_starts=torch.tensor([0, 0, 3], dtype=torch.int32),
        context_lengths=torch.tensor([0, 10], dtype=torch.int32),
        block_tables=made.packed.block_tables.repeat(2, 1),
    )
    assert torch.equal(made.attend(), expected)


def test_a_block_that_does_not_exist_is_refused() -> None:
    made = case([(1, 40)])
    made.packed.block_tables[0, 1] = 1000
    with pytest.raises(RuntimeError, match="paged_attention: block 1000 of"):
        made.attend()
    made.packed.slots[0] = 10**6
    with pytest.raises(RuntimeError, match="write_cache: slot 1000000 of"):
        write_cache(made.keys, made.values, made.cache, made.packed)


def test_the_compiler_takes_both_into_its_graph() -> None:
    made = case([(4, 10), (1, 30)])

    def step(queries: Tensor, keys: Tensor, values: Tensor, cache: LayerCache) -> Tensor:
        write_cache(keys * 2, values, cache, made.packed)
        return paged_attention(queries, cache, made.packed, scale=0.2, window=7)

    expected = step(made.queries, made.keys, made.values, made.cache)
    fresh = empty_cache(len(made.cache.keys), 2, 16, 32, torch.float32)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(made.queries, made.keys, made.values, fresh), expected)
    assert torch.equal(fresh.keys.nan_to_num(), made.cache.keys.nan_to_num())
