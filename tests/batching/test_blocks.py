"""The books of the cache, layout by layout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batching.test_scheduler import sequence_of

from ridgeline.batching.blocks import BlockCache, direct_copies
from ridgeline.batching.consecutive import FreeRuns
from ridgeline.batching.pool import BlockNames, BlockPool, prefix_hashes
from ridgeline.batching.sequence import Content


def test_the_block_let_go_longest_ago_is_forgotten_first() -> None:
    pool = BlockPool(3)
    blocks = [pool.take() for _ in range(3)]
    for block in blocks:
        pool.name([block], [bytes([block])])
    pool.drop((1, 0, 2))
    pool.hold(1)
    pool.drop((1,))
    assert [pool.take() for _ in range(3)] == [0, 2, 1]
    assert not pool.block_of
    with pytest.raises(IndexError, match="no block is free"):
        pool.take()


def test_empty_blocks_are_used_before_anything_is_forgotten() -> None:
    pool = BlockPool(2)
    named = pool.take()
    pool.name([named], [b"name"])
    pool.drop((named,))
    assert pool.take() != named
    assert pool.block_of == {b"name": named}


@pytest.mark.parametrize("broken", ["references", "_empty", "_kept", "block_of"])
def test_every_broken_book_is_noticed(broken: str) -> None:
    cache = BlockCache(4, 2)
    sequence = sequence_of(5)
    assert cache.admit(sequence, [])
    sequence.num_computed = 4
    cache.free(sequence)
    cache.check([])
    pool = cache._layout._pool
    if broken == "references":
        pool.references[0] += 1
    elif broken == "_empty":
        pool._empty.pop()
    elif broken == "_kept":
        pool._kept.popitem()
    else:
        pool.block_of.popitem()
    with pytest.raises(AssertionError):
        cache.check([])


def test_a_table_that_the_books_do_not_know_is_noticed() -> None:
    cache = BlockCache(4, 2)
    sequence = sequence_of(5)
    assert cache.admit(sequence, [])
    cache.check([sequence])
    with pytest.raises(AssertionError, match="0 holders, 1 counted"):
        cache.check([])


def test_a_contiguous_sequence_reserves_its_longest_from_the_start() -> None:
    cache = BlockCache(9, 4, layout="contiguous", max_length=16)
    one, two, three = sequence_of(3), sequence_of(3), sequence_of(3)
    assert cache.admit(one, [])
    assert cache.admit(two, [])
    assert not cache.admit(three, []), "one block is left, four are asked for"
    assert one.blocks == [0, 1, 2, 3]
    assert cache.usage == pytest.approx(8 / 9)
    cache.free(one)
    cache.check([two])


def test_a_contiguous_cache_that_holds_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="reserves 100 tokens for each sequence and the cache has"):
        BlockCache(4, 4, layout="contiguous", max_length=100)


def test_a_dynamic_run_doubles_in_place_or_moves_with_its_content() -> None:
    cache = BlockCache(16, 4, layout="dynamic")
    one = sequence_of(7)
    one.most_tokens = 65
    assert cache.admit(one, [])
    one.num_computed = 8
    copies: list[tuple[int, int]] = []
    assert cache.extend(one, 9, copies)
    assert (one.blocks, copies) == ([0, 1, 2, 3], [])
    two = sequence_of(3)
    assert cache.admit(two, [])
    one.num_computed = 16
    assert cache.extend(one, 17, copies)
    assert one.blocks == list(range(5, 13))
    assert copies == [(0, 5), (1, 6), (2, 7), (3, 8)]
    cache.check([one, two])


@given(st.lists(st.integers(1, 6), max_size=40), st.randoms(use_true_random=False))
def test_gaps_join_again_when_all_is_given_back(counts: list[int], random: object) -> None:
    runs = FreeRuns(40)
    held = []
    for count in counts:
        first = runs.take(count)
        if first is not None:
            held.append((first, count))
        runs.check()
    random.shuffle(held)
    for first, count in held:
        runs.give(first, count)
        runs.check()
    assert runs.take(40) == 0


def test_names_of_blocks_follow_the_whole_prefix() -> None:
    names = prefix_hashes([1, 2, 3, 4, 5, 6], 2)
    assert prefix_hashes([9, 2, 3, 4, 5, 6], 2)[1:] != names[1:]
    assert prefix_hashes([1, 2, 3, 4], 4)[0] != names[1]
    assert len(set(names)) == 3


def test_names_of_blocks_follow_what_stands_behind_alike_tokens() -> None:
    names = BlockNames(2)

    def of(*contents: Content) -> list[bytes]:
        found: list[bytes] = []
        names.append(found, [7, 9, 9, 9, 9, 8], 3, "", contents)
        return found

    cat, dog, plain = of(Content(1, 5, b"cat")), of(Content(1, 5, b"dog")), of()
    assert len({*cat, *dog, *plain}) == 9
    both = of(Content(1, 3, b"cat"), Content(3, 5, b"dog"))
    other = of(Content(1, 4, b"cat"), Content(4, 5, b"dog"))
    assert both[0] == other[0]
    assert both[1] != other[1]
    later = of(Content(4, 5, b"cat"))
    assert later[:2] == plain[:2]
    assert later[2] != plain[2]


def test_a_run_that_moves_twice_in_a_step_is_copied_from_where_it_lay_before() -> None:
    assert direct_copies([(1, 5), (5, 9), (2, 5)]) == ((2, 5), (1, 9))
    assert direct_copies([(1, 5), (7, 1)]) == ((1, 5), (7, 1))
