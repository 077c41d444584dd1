"""8-bit weights: rounding and packing. The products are tested in `test_linear.py`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.kernels import linear_int8


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 70), st.integers(1, 70), st.sampled_from([torch.int8, torch.float8_e4m3fn]))
def test_what_is_packed_unpacks(outputs: int, depth: int, dtype: torch.dtype) -> None:
    levels = torch.randint(-128, 128, (outputs, depth), dtype=torch.int8).view(dtype)
    found = linear_int8.unpack(linear_int8.pack(levels), outputs, depth)
    assert torch.equal(found.view(torch.int8), levels.view(torch.int8))


def test_groups_unpack() -> None:
    scales = torch.rand(33, 3)
    assert torch.equal(linear_int8.unpack_groups(linear_int8.pack_groups(scales), 33), scales)


def test_no_weight_moves_by_more_than_half_a_step() -> None:
    weight = torch.randn(16, 64)
    levels, scales = linear_int8.quantise(weight)
    moved = (linear_int8.dequantise(levels, scales) - weight).abs()
    assert (moved <= scales / 2 + 1e-6).all()


@pytest.mark.parametrize("quantise", [linear_int8.quantise, linear_int8.quantise_fp8])
def test_an_output_of_zeros_stays_zero(quantise: object) -> None:
    levels, scales = quantise(torch.zeros(2, 8))  # type: ignore[operator]
    assert torch.equal(linear_int8.dequantise(levels, scales), torch.zeros(2, 8))


def test_every_level_is_widened_exactly() -> None:
    levels = torch.arange(-128, 128, dtype=torch.int8).view(32, 8)
    ones = linear_int8.pack_groups(torch.ones(32, 1))
    for dtype in (torch.int8, torch.float8_e4m3fn):
        stored = levels.view(dtype)
        stored = torch.where(stored.float().isnan(), torch.zeros((), dtype=dtype), stored)
        panels = linear_int8.pack(stored)
        found = linear_int8.linear(torch.eye(8), panels, ones, None, None, 32)
        assert torch.equal(found.T, stored.float())
