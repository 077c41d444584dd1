"""Paged attention with PyTorch's own operators against the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.test_paged_attention import (
    QUANTISED,
    TOLERANCE,
    Case,
    case,
    in_trees,
    narrow,
    sequences,
    trees,
)

from ridgeline.kernels import gathered_attention as gathering
from ridgeline.kernels.gathered_attention import gathered_attention


def gathered(made: Case, **options: object) -> torch.Tensor:
    cache, packed = made.cache, made.packed
    given = {"scale": made.queries.shape[-1] ** -0.5, "window": None, "softcap": None} | options
    return gathered_attention(
        made.queries, cache.keys, cache.values, cache.key_scales, cache.value_scales,
        packed.query_starts, packed.context_lengths, packed.block_tables,
        sinks=given.pop("sinks", None), seen=packed.seen, first=given.pop("first", 0), **given,
    )  # fmt: skip


@settings(max_examples=12)
@given(
    sequences, st.integers(1, 3), st.integers(1, 4), st.sampled_from([32, 20]),
    st.integers(1, 32), st.none() | st.integers(1, 200), st.none() | st.floats(1.0, 50.0),
    st.booleans(), st.integers(0, 2**31),
)  # fmt: skip
def test_float32_is_the_reference(
    mix: list[tuple[int, int]], kv_heads: int, group: int, size: int, block: int,
    window: int | None, softcap: float | None, has_sinks: bool, seed: int,
) -> None:  # fmt: skip
    made = case(mix, kv_heads=kv_heads, group=group, size=size, block=block, seed=seed)
    sinks = torch.randn(kv_heads * group) if has_sinks else None
    options = {"window": window, "softcap": softcap, "sinks": sinks}
    torch.testing.assert_close(
        gathered(made, **options), made.reference(**options), rtol=2e-5, atol=2e-5
    )


@settings(max_examples=12)
@given(trees, st.integers(1, 32), narrow, st.integers(0, 2**31))
def test_trees_and_first_tokens_are_the_reference(
    mix: list[tuple[int, int]], block: int, sees: tuple[int | None, int], seed: int
) -> None:
    made = in_trees(case(mix, block=block, seed=seed), seed)
    found = gathered(made, window=sees[0], first=sees[1])
    made.packed = replace(made.packed, recent=sees[0], first=sees[1])
    torch.testing.assert_close(found, made.reference(), rtol=2e-5, atol=2e-5)


@settings(max_examples=12)
@given(
    sequences, st.integers(1, 4), st.integers(1, 32), st.none() | st.integers(1, 200),
    st.sampled_from(list(TOLERANCE)), st.sampled_from([None, *QUANTISED]), st.booleans(),
    st.integers(0, 2**31),
)  # fmt: skip
def test_every_type_is_the_reference_to_its_rounding(
    mix: list[tuple[int, int]], group: int, block: int, window: int | None,
    dtype: torch.dtype, kv_dtype: torch.dtype | None, fixed: bool, seed: int,
) -> None:  # fmt: skip
    made = case(mix, group=group, block=block, dtype=dtype, kv_dtype=kv_dtype, fixed=fixed,
                seed=seed)  # fmt: skip
    close = 2 * TOLERANCE[dtype]
    found = gathered(made, window=window)
    torch.testing.assert_close(found, made.reference(window=window), rtol=close, atol=close)


def test_many_sequences_and_large_scores_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    made = case([(1, 40)] * 5 + [(30, 200), (1, 300)])
    monkeypatch.setattr(gathering, "KEYS_AT_ONCE", 100)
    monkeypatch.setattr(gathering, "SCORES_AT_ONCE", 2000)
    for softcap in (None, 9.0):
        found = gathered(made, softcap=softcap)
        torch.testing.assert_close(found, made.reference(softcap=softcap), rtol=1e-5, atol=1e-5)


def test_blocks_before_the_window_are_not_read() -> None:
    made = case([(1, 300)], block=8)
    expected = gathered(made, window=50)
    tables = made.packed.block_tables.clone()
    for lost in tables[0, : (300 - 50) // 8].tolist():
        made.cache.keys[lost] = made.cache.values[lost] = float("nan")
    tables[0, : (300 - 50) // 8] = -1
    made.packed = replace(made.packed, block_tables=tables)
    assert torch.equal(gathered(made, window=50), expected)


def test_padding_is_zeros_and_a_block_that_does_not_exist_is_refused() -> None:
    made = case([(3, 40)])
    made.queries = torch.cat((made.queries, made.queries))
    assert not gathered(made)[3:].any()
    for wrong in (1000, -1):
        made.packed.block_tables[0, 1] = wrong
        with pytest.raises(RuntimeError, match=f"paged_attention: block {wrong} of"):
            gathered(made)
