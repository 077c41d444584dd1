"""Any order of samples is a permutation, decided by the seed and the number alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.train.data.order import SampleOrder, hash_of, permute

QUICK = settings(deadline=None, max_examples=50)


@QUICK
@given(size=st.integers(1, 5000), key=st.integers(0, 2**64 - 1))
def test_every_index_comes_exactly_once(size: int, key: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


@QUICK
@given(size=st.integers(10**9, 2**62), start=st.integers(0, 10**9 - 100), key=st.integers(0, 99))
def test_a_few_places_of_a_huge_permutation_cost_no_memory(size: int, start: int, key: int) -> None:
    found = permute(np.arange(start, start + 100), size, key)
    assert len(np.unique(found)) == 100
    assert found.min() >= 0
    assert found.max() < size


@pytest.mark.slow
def test_the_permutation_is_uniform_enough_to_mix_sources() -> None:
    """Where index 0 … 7 of 8 land over many keys, and pairs of neighbours (chi-squared)."""
    keys = range(4000)
    landed = np.array([permute(np.arange(8), 8, hash_of(7, key)) for key in keys])
    for index in range(8):
        seen = np.bincount(landed[:, index], minlength=8)
        # 7 degrees of freedom: 24.3 at one in a thousand; 8 indices are looked at.
        assert ((seen - 500) ** 2 / 500).sum() < 30
    size = 100_000
    found = permute(np.arange(size), size, hash_of(3))
    steps = np.abs(np.diff(found)) / size
    assert steps.mean() == pytest.approx(1 / 3, abs=0.005)
    assert np.corrcoef(np.arange(size), found)[0, 1] == pytest.approx(0, abs=0.01)


@QUICK
@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
    shuffle=st.booleans(),
    data=st.data(),
)
def test_each_source_is_seen_whole_before_it_comes_again(
    sizes: list[int], seed: int, shuffle: bool, data: st.DataObject
) -> None:
    weights = data.draw(
        st.lists(st.floats(0.1, 10), min_size=len(sizes), max_size=len(sizes)), label="weights"
    )
    order = SampleOrder(sizes=tuple(sizes), weights=tuple(weights), seed=seed, shuffle=shuffle)
    source, sequence = order.at(np.arange(2000))
    for number, size in enumerate(sizes):
        drawn = sequence[source == number]
        for start in range(0, len(drawn) - size + 1, size):
            epoch = drawn[start : start + size]
            assert np.array_equal(np.sort(epoch), np.arange(size))
            assert shuffle or np.array_equal(epoch, np.arange(size))


@QUICK
@given(
    start=st.integers(0, 10**7),
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=5),
    seed=st.integers(0, 50),
)
def test_a_sample_does_not_depend_on_how_the_order_was_asked(
    start: int, lengths: list[int], seed: int
) -> None:
    sizes, weights = (1000, 31), (3.0, 1.0)
    going = SampleOrder(sizes=sizes, weights=weights, seed=seed, shuffle=True)
    for length in lengths:
        fresh = SampleOrder(sizes=sizes, weights=weights, seed=seed, shuffle=True)
        expected = fresh.at(np.arange(start, start + length))
        assert np.array_equal(expected, going.between(start, start + length))
        start += length


@QUICK
@given(
    weights=st.lists(st.floats(0.05, 5), min_size=2, max_size=5),
    seed=st.integers(0, 100),
    start=st.integers(0, 10**9),
)
def test_shares_of_a_mixture_converge_to_the_weights(
    weights: list[float], seed: int, start: int
) -> None:
    order = SampleOrder(
        sizes=(10**6,) * len(weights), weights=tuple(weights), seed=seed, shuffle=False
    )
    source, _ = order.at(np.arange(start, start + 10_000))
    for number, weight in enumerate(weights):
        share = weight / sum(weights)
        # Five standard deviations of drawing with replacement: blocks do better.
        bound = 5 * (share * (1 - share) / 10_000) ** 0.5
        assert abs(np.mean(source == number) - share) < bound
    whole, _ = order.at(np.arange(2**16))
    counts = np.bincount(whole, minlength=len(weights))
    assert np.abs(counts / 2**16 - np.array(weights) / sum(weights)).max() <= 1 / 2**16


def test_a_share_that_would_never_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match=r"below 1/65536"):
        SampleOrder(sizes=(5, 5), weights=(1.0, 1e-9), seed=0, shuffle=True)
    with pytest.raises(InputError, match="must exceed 0"):
        SampleOrder(sizes=(5, 5), weights=(1.0, 0.0), seed=0, shuffle=True)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    order = SampleOrder(sizes=(64,), weights=(1.0,), seed=0, shuffle=True)
    _, found = order.at(np.arange(128))
    assert not np.array_equal(found[:64], found[64:])
    _, other = SampleOrder(sizes=(64,), weights=(1.0,), seed=1, shuffle=True).at(np.arange(64))
    assert not np.array_equal(found[:64], other)
