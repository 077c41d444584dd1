"""Compute units that wait for the last tiles of a matmul.

A matmul of m rows and n columns is cut into tiles, each of which one compute unit multiplies over
the whole depth k. The last wave of tiles seldom fills all units, and where there are fewer tiles
than units (few rows, or columns dealt out to many devices) it is the only one: the matmul then
takes a tile's own time, 2 m' n' k / (peak / units), however few products there are in all. Tiles
have up to 128 rows (NVIDIA, "Matrix Multiplication Background User's Guide", section 3: tile and
wave quantization). Splits of the depth shorten it, which the fitted share of a wave stands for.
"""

from __future__ import annotations

from ridgeline.hardware.facts import Device
from ridgeline.models.counts import num_routed_layers
from ridgeline.models.spec import ModelSpec

TILE = 128.0
"""Rows and columns of a tile."""


def wave_products(model: ModelSpec, device: Device, tp: int) -> float:
    """Multiplications of one row of a tile over the depths of all dense matmuls, on all units.

    Four matmuls a layer: two as deep as the model is wide, one as its heads on one device, one as
    its MLP there. 0 where the number of compute units is not known.
    """
    units = device.chip.num_units or 0
    dense = model.layers - num_routed_layers(model)
    heads = model.heads * model.head_dim / tp
    depths = model.layers * (model.hidden + heads) + dense * (model.hidden + model.ffn / tp)
    return TILE * depths * units
