"""Time of a matrix product from its shape: tiles, waves over the compute units, depth, alignment.

A GPU computes an M x N output in tiles, one tile per compute unit at a time, so that

    utilisation = M·N / (tile area x units x waves),   waves = ⌈⌈M/tm⌉·⌈N/tn⌉·count / units⌉

(tile and wave quantisation: NVIDIA, "Matrix Multiplication Background User's Guide", section 3).
Libraries choose the best of several tiles; smaller tiles reuse less and run slower. Depth K fills
the pipeline of each tile: K/(K + half). A dimension that is no multiple of 128 bytes breaks the
wide loads ("NVIDIA Tensor Core alignment", same guide, section 4). Below the roofline's ridge the
operands' traffic decides instead.
"""

from __future__ import annotations

import numpy as np

from ridgeline.cost.layouts import Floats

TILES = ((256.0, 128.0, 1.0), (128.0, 128.0, 0.94), (128.0, 64.0, 0.80), (64.0, 64.0, 0.55))
"""Rows, columns, and rate relative to the largest tile."""


def gemm_flops(rows: Floats, outer: Floats, inner: Floats) -> Floats:
    """Multiplications and additions of (rows x inner) · (inner x outer)."""
    return 2.0 * rows * outer * inner


def gemm_bytes(rows: Floats, outer: Floats, inner: Floats, width: Floats | float) -> Floats:
    """Operands read once at `width` bytes per element, the result written in 16 bits."""
    return width * inner * (rows + outer) + 2.0 * rows * outer


def utilisation(rows: Floats, outer: Floats, count: Floats | float, units: Floats) -> Floats:
    """Share of the compute units' time that does useful work, with the best tile."""
    best: Floats = np.zeros(1)
    for tile_rows, tile_columns, rate in TILES:
        for tall, wide in ((tile_rows, tile_columns), (tile_columns, tile_rows)):
            tiles = np.ceil(rows / tall) * np.ceil(outer / wide) * count
            waves = np.ceil(tiles / units)
            area = tall * wide * units * np.maximum(waves, 1.0)
            best = np.maximum(best, rate * rows * outer * count / area)
            if tall == wide:
                break
    return best


def alignment(size: Floats, width: Floats | float, penalty: Floats) -> Floats:
    """1 for a size that is a multiple of 128 bytes, else less by `penalty`; twice for odd ones."""
    bytes_long = size * width
    coarse = np.where(np.mod(bytes_long, 128.0) == 0.0, 1.0, 1.0 - penalty)
    return np.where(np.mod(bytes_long, 16.0) == 0.0, coarse, (1.0 - penalty) ** 3)
