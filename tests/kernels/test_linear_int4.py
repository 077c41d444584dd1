"""4-bit weights: rounding and packing. The products are tested in `test_linear.py`."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.kernels import linear_int4, linear_int8


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 70), st.integers(1, 20))
def test_what_is_packed_unpacks(outputs: int, quarters: int) -> None:
    levels = torch.randint(-8, 8, (outputs, 4 * quarters), dtype=torch.int8)
    assert torch.equal(linear_int4.unpack(linear_int4.pack(levels), outputs), levels)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_no_weight_moves_by_more_than_a_step(group: int) -> None:
    weight = torch.randn(16, 256)
    levels, scales = linear_int4.quantise(weight, group)
    assert levels.min() >= -8
    assert levels.max() <= 7
    moved = (linear_int8.dequantise(levels, scales) - weight).abs().unflatten(1, (-1, group))
    assert (moved <= scales.float()[..., None] * 1.01).all()


def test_groups_that_do_not_divide_the_depth_are_refused() -> None:
    with pytest.raises(InputError, match="--group-size"):
        linear_int4.quantise(torch.randn(4, 96), 64)


def test_every_level_is_widened_exactly() -> None:
    levels = torch.arange(-8, 8, dtype=torch.int8).repeat(4).view(8, 8)
    ones = linear_int8.pack_groups(torch.ones(8, 1))
    found = linear_int4.linear(torch.eye(8), linear_int4.pack(levels), ones, None, None, 8)
    assert torch.equal(found.T, levels.float())
