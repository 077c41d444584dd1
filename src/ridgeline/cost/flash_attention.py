"""Attention tile by tile: what stays on the chip, and the bytes that move, beside the plain form.

    plain      writes and reads the N x N scores twice         4 N² + 4 N d elements
    tiled      each Q tile stays while all K and V pass it     2 N d (1 + tiles of Q) elements
    least      N² d² / M, an order that no exact algorithm with M elements on the chip beats

of one head with N tokens and d channels (Dao et al., FlashAttention, 2205.14135, theorem 2 and
proposition 3; loops in the order of FlashAttention-2, 2307.08691, section 3.1). With a causal mask
tiles above the diagonal are left out by the tiled form alone, so that K and V pass fewer of them.
Bytes are those between compute units and memory: caches in between may serve some of the tiled
form's reads, since many Q tiles want the same K and V.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ridgeline.cost.operator import WIDTHS
from ridgeline.cost.roofline import Bound, bound, least_seconds
from ridgeline.errors import InputError
from ridgeline.hardware.facts import Device

ACCUMULATOR_BYTES = 4
"""Scores, sums and outputs are added up in fp32."""
MOST_TILES = 4096
"""On one side; a picture of more says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTiles:
    """One attention layer as it is cut: how many heads of how many tokens, cut how."""

    seq: int
    head_dim: int = 128
    heads: int = 1
    """Heads of all sequences of the batch."""
    tile_q: int = 128
    """Rows of a tile of queries."""
    tile_k: int = 64
    """Rows of a tile of keys and values."""
    causal: bool = False
    dtype: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionForm:
    """The plain or the tiled form on one device."""

    name: str
    moved_bytes: float
    seconds: float
    """The least time, for its FLOPs and its bytes."""
    intensity_flops_per_byte: float
    bound: Bound
    kept_bytes: float
    """Bytes of scores that lie in memory at once, over all heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledAttention:
    """What tiling makes of one attention layer."""

    tiles: AttentionTiles
    device: str
    num_q_tiles: int
    num_k_tiles: int
    visited: tuple[int, ...]
    """For each Q tile, the K tiles that pass it; with a causal mask up to the diagonal."""
    flops: float
    """FLOPs of the tiles that are visited."""
    chip_bytes: dict[str, float]
    """What one Q tile needs on the chip: part → bytes. The first three lie in shared memory."""
    shared_bytes: float
    """The part in shared memory: the tiles of Q, K and V."""
    room_bytes: int | None
    """Shared memory of one compute unit; None: not published."""
    fits: bool
    plain: AttentionForm
    tiled: AttentionForm
    least_bytes: float
    """N² d² / M: the order that no exact algorithm goes below, where all shared memory is used."""
    saved_ratio: float
    """Bytes of the plain form over those of the tiled one."""
    speedup_ratio: float
    """Least time of the plain form over that of the tiled one."""


def flash_attention(tiles: AttentionTiles, device: Device) -> TiledAttention:
    """Attention tile by tile on a device, beside the form that writes its scores to memory.

    >>> from ridgeline.hardware import device
    >>> found = flash_attention(AttentionTiles(seq=4096, tile_q=128, tile_k=128), device("a100"))
    >>> found.plain.moved_bytes / 1e6, found.tiled.moved_bytes / 1e6, found.fits
    (138.412032, 69.206016, True)

    Raises:
        InputError: Sizes that cannot be, or more tiles than anyone looks at.
    """
    _check(tiles)
    width = WIDTHS[tiles.dtype]
    rows = math.ceil(tiles.seq / tiles.tile_q)
    columns = math.ceil(tiles.seq / tiles.tile_k)
    visited = tuple(_visited(tiles, row, columns) for row in range(rows))
    flops = tiles.heads * _flops(tiles, visited)
    vector = tiles.seq * tiles.head_dim * width
    scores = float(tiles.seq) ** 2 * width
    passing = sum(_rows_of(tiles, count) for count in visited) * tiles.head_dim * width
    plain = tiles.heads * (4.0 * scores + 4.0 * vector)
    tiled = tiles.heads * (2.0 * vector + 2.0 * passing)
    dense = tiles.heads * 4.0 * float(tiles.seq) ** 2 * tiles.head_dim
    chip = _on_chip(tiles, width)
    shared = sum(chip[name] for name in ("Q tile", "K tile", "V tile"))
    room = device.chip.shared_bytes_per_unit
    forms = [
        _form("plain", dense, plain, device, tiles, tiles.heads * scores),
        _form("tiled", flops, tiled, device, tiles, 0.0),
    ]
    return TiledAttention(
        tiles=tiles,
        device=device.name,
        num_q_tiles=rows,
        num_k_tiles=columns,
        visited=visited,
        flops=flops,
        chip_bytes=chip,
        shared_bytes=shared,
        room_bytes=room,
        fits=room is None or shared <= room,
        plain=forms[0],
        tiled=forms[1],
        least_bytes=tiles.heads * _least(tiles, width, room or shared),
        saved_ratio=plain / tiled,
        speedup_ratio=forms[0].seconds / forms[1].seconds,
    )


def _check(tiles: AttentionTiles) -> None:
    if min(tiles.seq, tiles.head_dim, tiles.heads, tiles.tile_q, tiles.tile_k) < 1:
        raise InputError("seq, head_dim, heads, tile_q and tile_k are each 1 or more")
    if tiles.dtype not in WIDTHS:
        raise InputError(f"{tiles.dtype}: not a known dtype; use one of {', '.join(WIDTHS)}")
    if tiles.seq > MOST_TILES * min(tiles.tile_q, tiles.tile_k):
        raise InputError(f"seq {tiles.seq}: more than {MOST_TILES} tiles; make them larger")


def _visited(tiles: AttentionTiles, row: int, columns: int) -> int:
    """The K tiles that a Q tile meets."""
    if not tiles.causal:
        return columns
    last = min(tiles.seq, (row + 1) * tiles.tile_q)
    return math.ceil(last / tiles.tile_k)


def _rows_of(tiles: AttentionTiles, count: int) -> int:
    """Rows of the first `count` K tiles; the last may be cut short."""
    return min(tiles.seq, count * tiles.tile_k)


def _flops(tiles: AttentionTiles, visited: tuple[int, ...]) -> float:
    """Two products, 2 FLOPs each, over whatever tiles are met."""
    pairs = sum(
        min(tiles.tile_q, tiles.seq - row * tiles.tile_q) * _rows_of(tiles, count)
        for row, count in enumerate(visited)
    )
    return 4.0 * pairs * tiles.head_dim


def _on_chip(tiles: AttentionTiles, width: float) -> dict[str, float]:
    return {
        "Q tile": tiles.tile_q * tiles.head_dim * width,
        "K tile": tiles.tile_k * tiles.head_dim * width,
        "V tile": tiles.tile_k * tiles.head_dim * width,
        "scores": float(tiles.tile_q) * tiles.tile_k * ACCUMULATOR_BYTES,
        "output": float(tiles.tile_q) * tiles.head_dim * ACCUMULATOR_BYTES,
        "row sums and maxima": 2.0 * tiles.tile_q * ACCUMULATOR_BYTES,
    }


def _least(tiles: AttentionTiles, width: float, room_bytes: float) -> float:
    elements = room_bytes / width
    return float(tiles.seq) ** 2 * float(tiles.head_dim) ** 2 / elements * width


def _form(
    name: str, flops: float, moved: float, device: Device, tiles: AttentionTiles, kept: float
) -> AttentionForm:
    peak, bandwidth = device.peak(tiles.dtype), device.memory.bandwidth_bytes_per_second
    return AttentionForm(
        name=name,
        moved_bytes=moved,
        seconds=least_seconds(flops, moved, peak, bandwidth),
        intensity_flops_per_byte=flops / moved,
        bound=bound(flops, moved, peak, bandwidth),
        kept_bytes=kept,
    )
