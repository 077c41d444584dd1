"""Integers: scales, zero points, rounding and packing."""

from __future__ import annotations

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.utils import calculate_qparams
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.kernels.number_formats import integer

NUMBERS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40)
BITS = st.integers(2, 8)


@given(values=NUMBERS, bits=BITS)
@settings(max_examples=60, deadline=None)
def test_affine_keeps_zero_and_errs_by_half_a_step(values: list[float], bits: int) -> None:
    x = torch.tensor(values)
    scale = integer.affine_scale(x.min(), x.max(), bits).clamp_min(1e-30)
    zero = integer.zero_points(x.min(), scale, bits)
    assert integer.decode(zero, scale, zero) == 0
    found = integer.decode(integer.encode(x, scale, zero, bits), scale, zero)
    # Half a step, and as much again where the rounded zero point cuts an end.
    assert ((found - x).abs() <= scale * 1.001).all()


@given(values=NUMBERS, bits=BITS)
@settings(max_examples=60, deadline=None)
def test_symmetric_errs_by_half_a_step(values: list[float], bits: int) -> None:
    x = torch.tensor(values)
    scale = integer.symmetric_scale(x.min(), x.max(), bits).clamp_min(1e-30)
    found = integer.decode(integer.encode(x, scale, None, bits), scale, None)
    assert ((found - x).abs() <= scale * 0.501).all()


@given(values=NUMBERS, bits=BITS, affine=st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_is_on_the_grid_stays(values: list[float], bits: int, affine: bool) -> None:
    x = torch.tensor(values)
    made = integer.affine_scale if affine else integer.symmetric_scale
    scale = made(x.min(), x.max(), bits).clamp_min(1e-20)
    zero = integer.zero_points(x.min(), scale, bits) if affine else None
    levels = integer.encode(x, scale, zero, bits)
    again = integer.encode(integer.decode(levels, scale, zero), scale, zero, bits)
    assert torch.equal(again, levels)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "affine"])
def test_scales_and_zero_points_are_compressed_tensors(bits: int, symmetric: bool) -> None:
    made = torch.Generator().manual_seed(bits)
    low, high = torch.randn(2, 1000, generator=made).mul(5).sort(0).values
    args = QuantizationArgs(num_bits=bits, symmetric=symmetric, strategy="channel")
    scales, zeros = calculate_qparams(low, high, args)
    if symmetric:
        assert torch.equal(integer.symmetric_scale(low, high, bits), scales)
        return
    ours = integer.affine_scale(low, high, bits)
    assert torch.equal(ours, scales)
    assert torch.equal(integer.zero_points(low, ours, bits), zeros)


@given(bits=BITS, rows=st.integers(1, 3), n=st.integers(1, 100), seed=st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_packing_is_compressed_tensors_and_is_undone(
    bits: int, rows: int, n: int, seed: int
) -> None:
    lowest, highest = integer.bounds(bits)
    made = torch.Generator().manual_seed(seed)
    levels = torch.randint(lowest, highest + 1, (rows, n), generator=made).to(torch.int8)
    words = integer.pack(levels, bits)
    assert torch.equal(words, pack_to_int32(levels, bits))
    assert torch.equal(integer.unpack(words, bits, n), levels)


@pytest.mark.parametrize("bits", range(2, 9))
def test_every_level_survives_packing(bits: int) -> None:
    lowest, highest = integer.bounds(bits)
    levels = torch.arange(lowest, highest + 1).to(torch.int8)[None]
    assert torch.equal(integer.unpack(integer.pack(levels, bits), bits, levels.shape[1]), levels)


def test_ties_go_to_the_even_level() -> None:
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5])
    assert integer.encode(x, torch.ones(()), None, 8).tolist() == [0, 2, 2, 0, -2]
