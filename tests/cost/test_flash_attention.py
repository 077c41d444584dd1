"""Attention in tiles: bytes counted by hand, by brute force, and in the limit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.flash_attention import AttentionTiles, flash_attention
from ridgeline.errors import InputError
from ridgeline.hardware import device

H100 = device("h100")
SIZES = st.sampled_from([16, 24, 64, 100, 128])


@given(seq=st.integers(1, 700), tile_q=SIZES, tile_k=SIZES, causal=st.booleans())
def test_bytes_and_flops_are_those_of_the_loops(
    seq: int, tile_q: int, tile_k: int, causal: bool
) -> None:
    tiles = AttentionTiles(seq=seq, head_dim=8, tile_q=tile_q, tile_k=tile_k, causal=causal)
    moved = flops = 0
    visited = []
    for first in range(0, seq, tile_q):
        rows = min(tile_q, seq - first)
        moved += 2 * rows  # Q is read, the output written
        count = 0
        for key in range(0, seq, tile_k):
            if causal and key >= first + rows:
                continue
            columns = min(tile_k, seq - key)
            moved += 2 * columns  # K and V
            flops += 4 * rows * columns * 8
            count += 1
        visited.append(count)
    found = flash_attention(tiles, H100)
    assert found.visited == tuple(visited)
    assert found.tiled.moved_bytes == pytest.approx(moved * 8 * 2)
    assert found.flops == pytest.approx(flops)


def test_the_plain_form_moves_its_scores_four_times() -> None:
    found = flash_attention(AttentionTiles(seq=2048, head_dim=64, heads=16), H100)
    assert found.plain.moved_bytes == 16 * (4 * 2048**2 + 4 * 2048 * 64) * 2
    assert found.plain.kept_bytes == 16 * 2048**2 * 2
    assert found.tiled.kept_bytes == 0


def test_larger_tiles_of_queries_move_less_and_never_beat_the_order_of_the_least() -> None:
    sizes = [16, 32, 64, 128, 256]
    moved = [
        flash_attention(AttentionTiles(seq=8192, tile_q=size), H100).tiled.moved_bytes
        for size in sizes
    ]
    assert moved == sorted(moved, reverse=True)
    fitting = [
        one
        for size in sizes
        if (one := flash_attention(AttentionTiles(seq=8192, tile_q=size, tile_k=16), H100)).fits
    ]
    assert all(one.tiled.moved_bytes > one.least_bytes for one in fitting)


def test_tiles_that_exceed_shared_memory_do_not_fit() -> None:
    assert not flash_attention(AttentionTiles(seq=4096, tile_q=512, head_dim=256), H100).fits
    assert flash_attention(AttentionTiles(seq=4096, tile_q=128, tile_k=128), H100).fits


@pytest.mark.parametrize(
    "wrong", [{"seq": 0}, {"tile_q": 0}, {"dtype": "int3"}, {"seq": 10**9}, {"heads": -1}]
)
def test_sizes_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        flash_attention(AttentionTiles(**{"seq": 64, **wrong}), H100)  # type: ignore[arg-type]


def test_the_saving_grows_with_the_sequence() -> None:
    saved = [
        flash_attention(AttentionTiles(seq=2**power), H100).saved_ratio for power in range(9, 15)
    ]
    assert saved == sorted(saved)
    assert math.isclose(saved[-1], 2 * 128 / 128, rel_tol=0.1)  # 4 N² over 2 N² d / tile_q
