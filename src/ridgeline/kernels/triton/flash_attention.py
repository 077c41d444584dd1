"""FlashAttention on a GPU: what `kernels/flash_attention.py` calls.

Tiles are a matter of what fits: `flash_tiles.csv` lists, best first, tiles with the shared memory
that they take; the first that the device has room for is taken. Those of compute capability 9 are
the fastest of 198 on an H200 that need no stack (`docs/results/gpu.md`); on others nothing was
timed. Tests compile each for every architecture that would take it, and none spills.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.attention_mask import Band, visible
from ridgeline.kernels.flash_problem import FlashProblem
from ridgeline.kernels.triton import dense, shared_bytes
from ridgeline.kernels.triton.flash_backward import along_kernel, key_kernel, query_kernel
from ridgeline.kernels.triton.flash_forward import forward_kernel
from ridgeline.kernels.triton.tile_table import first_tile_that_fits

TABLE = Path(__file__).with_name("flash_tiles.csv")
LONGEST_HEAD = 256
_ROWS_OF_ALONG = 32


class Tile(NamedTuple):
    """How one kernel cuts its work."""

    queries: int
    keys: int
    warps: int
    stages: int


def forward(problem: FlashProblem, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The results out, laid out as queries are, and log_sums [B, H, T] in float32."""
    queries, keys, values = inputs
    made = torch.zeros_like if problem.query_starts is not None else torch.empty_like
    out = made(queries)
    batch, heads, length, _ = queries.shape
    log_sums = queries.new_empty((batch, heads, length), dtype=torch.float32)
    if problem.query_starts is not None:
        log_sums.fill_(float("-inf"))
    if not out.numel():
        return out, log_sums
    tile = _tile("forward", problem, queries)
    listed = _lists(problem, queries, keys, tile.queries, tile.keys)
    forward_kernel[_grid(problem.longest_queries, tile.queries, heads, problem)](
        out,
        log_sums,
        queries,
        keys,
        values,
        dense(problem.sinks),
        problem.seed,
        dense(problem.query_starts),
        dense(problem.key_starts),
        problem.bounds,
        *listed[:2],
        problem.scale,
        length,
        keys.shape[2],
        *out.stride()[:3],
        *queries.stride()[:3],
        *keys.stride()[:3],
        *values.stride()[:3],
        *listed[2:],
        **_constants(problem, queries, keys, tile),
    )
    return out, log_sums


def backward(
    problem: FlashProblem,
    inputs: tuple[Tensor, Tensor, Tensor],
    results: tuple[Tensor, Tensor],
    upper: tuple[Tensor, Tensor | None],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of queries, keys, values, and what each row's scores' gradient is less."""
    queries, keys, values = inputs
    (out, log_sums), (dout, dlog_sums) = results, upper
    made = torch.zeros_like if problem.query_starts is not None else torch.empty_like
    dqueries, dkeys, dvalues = made(queries), made(keys), made(values)
    batch, heads, length, dim = queries.shape
    key_heads, num_keys = keys.shape[1:3]
    along = torch.empty_like(log_sums)
    if queries.numel():
        along_kernel[(triton.cdiv(length, _ROWS_OF_ALONG), heads, batch)](
            along,
            dout,
            out,
            dense(dlog_sums),
            length,
            heads,
            *dout.stride()[:3],
            *out.stride()[:3],
            D=dim,
            BLOCK_D=_padded(dim),
            BLOCK_QUERIES=_ROWS_OF_ALONG,
            num_warps=4,
            enable_fp_fusion=True,
        )
    shared = (dout, log_sums, along, queries, keys, values, problem.seed)
    lengths = (dense(problem.query_starts), dense(problem.key_starts), problem.bounds)
    strides = [*dout.stride()[:3], *queries.stride()[:3]]
    strides += [*keys.stride()[:3], *values.stride()[:3]]
    if keys.numel():
        tile = _tile("keys", problem, queries)
        listed = _lists(problem, queries, keys, tile.queries, tile.keys, of_keys=True)
        key_kernel[_grid(problem.longest_keys, tile.keys, key_heads, problem)](
            dkeys,
            dvalues,
            *shared,
            *lengths,
            *listed[:2],
            problem.scale,
            length,
            num_keys,
            *dkeys.stride()[:3],
            *dvalues.stride()[:3],
            *strides,
            *listed[2:],
            **_constants(problem, queries, keys, tile),
        )
    if queries.numel():
        tile = _tile("queries", problem, queries)
        listed = _lists(problem, queries, keys, tile.queries, tile.keys)
        query_kernel[_grid(problem.longest_queries, tile.queries, heads, problem)](
            dqueries,
            *shared,
            *lengths,
            *listed[:2],
            problem.scale,
            length,
            num_keys,
            *dqueries.stride()[:3],
            *strides,
            *listed[2:],
            **_constants(problem, queries, keys, tile),
        )
    return dqueries, dkeys, dvalues, along


def _padded(dim: int) -> int:
    return max(16, triton.next_power_of_2(dim))


def _grid(longest: int, tile: int, heads: int, problem: FlashProblem) -> tuple[int, int, int]:
    return max(1, triton.cdiv(longest, tile)), heads, problem.rows


def _constants(
    problem: FlashProblem, queries: Tensor, keys: Tensor, tile: Tile
) -> dict[str, object]:
    dim = queries.shape[3]
    return {
        "GROUP": queries.shape[1] // keys.shape[1],
        "D": dim,
        "BLOCK_D": _padded(dim),
        "LEFT": problem.band.left,
        "RIGHT": problem.band.right,
        "SOFTCAP": problem.softcap,
        "DROPPED": problem.dropped,
        "KEPT_SCALE": problem.kept_scale,
        "BLOCK_QUERIES": tile.queries,
        "BLOCK_KEYS": tile.keys,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
        "enable_fp_fusion": True,
    }


def _tile(kernel: str, problem: FlashProblem, queries: Tensor) -> Tile:
    """The first tile of the table that the device has room for, no larger than a mask's block.

    Beside the tile a row says the longest head that it is for, and how rich a problem (0 nothing
    but bands, 1 blocks, 2 dropout, soft caps and documents).
    """
    dim = _padded(queries.shape[3])
    if dim > LONGEST_HEAD:
        raise InputError(f"heads of {queries.shape[3]}: the kernel takes at most {LONGEST_HEAD}")
    rich = problem.bounds is not None or bool(problem.dropout or problem.softcap)
    needed = 2 if rich else int(problem.blocks is not None)
    numbers = first_tile_that_fits(
        TABLE,
        kernel,
        queries.itemsize,
        queries.device,
        lambda row: row["rich"] >= needed and row["head_dim"] >= dim,
    )
    if numbers is None:
        raise InputError(
            f"no tile of {kernel} for heads of {queries.shape[3]} fits"
            f" {shared_bytes(queries.device)} bytes of shared memory"
        )
    tile = Tile(*(numbers[name] for name in Tile._fields))
    side = problem.block_size if problem.blocks is not None else 2**30
    return tile._replace(queries=min(tile.queries, side), keys=min(tile.keys, side))


def _lists(
    problem: FlashProblem,
    queries: Tensor,
    keys: Tensor,
    rows: int,
    columns: int,
    *,
    of_keys: bool = False,
) -> tuple[Tensor | None, Tensor | None, int, int, int]:
    """Which tiles each tile goes over where blocks are given: lists, lengths, and their strides."""
    if problem.blocks is None:
        return None, None, 0, 0, 0
    active = visited_tiles(problem, queries.shape[2], keys.shape[2], rows, columns)
    if of_keys:
        active = active.transpose(2, 3)
    order = torch.argsort(active.logical_not().to(torch.uint8), dim=-1, stable=True)
    batch, heads, tiles, _ = active.shape
    return (
        order.to(torch.int32).contiguous(),
        active.sum(-1, dtype=torch.int32).contiguous(),
        0 if batch == 1 else heads * tiles,
        0 if heads == 1 else tiles,
        active.shape[3],
    )


def visited_tiles(
    problem: FlashProblem, num_queries: int, num_keys: int, rows: int, columns: int
) -> Tensor:
    """Which tiles of `rows` × `columns` hold anything that is seen: bool [1 or B, 1 or H, …, …]."""
    assert problem.blocks is not None
    device, size = problem.blocks.device, problem.block_size
    first = torch.arange(0, num_queries, rows, device=device)
    begin = torch.arange(0, num_keys, columns, device=device)
    active = problem.blocks[:, :, first // size][..., begin // size]
    last, end = (first + rows).clamp(max=num_queries) - 1, (begin + columns).clamp(max=num_keys) - 1
    shift = num_keys - num_queries
    band = problem.band
    # A band's tile is seen where its last query and first key, and the other way, are not past it.
    if band.right is not None:
        active = active & visible(Band(None, band.right), last, begin, shift)[:, None]
    if band.left is not None:
        active = active & visible(Band(band.left, None), first, end, shift)[:, None]
    if problem.bounds is not None:
        low = torch.stack([problem.bounds[0][:, at] for at in _spans(first, last, rows)]).amin(0)
        high = torch.stack([problem.bounds[1][:, at] for at in _spans(first, last, rows)]).amax(0)
        meets = (end >= low[..., None]) & (begin < high[..., None])
        active = active & meets[:, None]
    return active


def _spans(first: Tensor, last: Tensor, rows: int) -> list[Tensor]:
    """Each tile's rows, one after another; the last tile's last row again where it is short."""
    return [torch.minimum(first + step, last) for step in range(rows)]
