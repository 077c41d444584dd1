"""Products of 8-bit weights and rounded activations against the same in float64."""

from __future__ import annotations

import pytest
import torch

from ridgeline.kernels import linear_int8, linear_w8a8


@pytest.mark.parametrize("portable", [False, True], ids=["fast", "portable"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("step", [None, 0.02], ids=["by-row", "fixed"])  # 0.02: cuts beyond 2.54
def test_every_path_is_the_reference(
    dtype: torch.dtype, portable: bool, step: float | None
) -> None:
    torch.manual_seed(0)
    for outputs, depth in [(1, 4), (33, 66), (64, 64), (100, 352), (70, 192)]:
        levels, scales = linear_int8.quantise(torch.randn(outputs, depth))
        bias = torch.randn(outputs)
        packed = linear_w8a8.pack(levels, scales)
        assert torch.equal(linear_w8a8.unpack(packed[0], outputs, depth), levels)
        for rows in (0, 1, 2, 11, 12, 13, 25, 200):
            x = torch.randn(rows, depth).to(dtype)
            expected = linear_w8a8.reference(x, levels, scales, bias, step)
            found = torch.ops.ridgeline.linear_w8a8(x, *packed, bias, outputs, step, portable)
            assert found.dtype == dtype
            tolerance = 1e-5 if dtype == torch.float32 else 8e-3
            assert torch.allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_a_row_of_zeros_gives_the_bias() -> None:
    levels, scales = linear_int8.quantise(torch.randn(32, 16))
    bias = torch.randn(32)
    found = linear_w8a8.linear(torch.zeros(1, 16), *linear_w8a8.pack(levels, scales), bias, 32)
    assert torch.equal(found[0], bias)


def test_tiles_of_amx_give_the_integers_that_vectors_give() -> None:
    torch.manual_seed(0)
    levels = torch.randint(-127, 128, (96, 128), dtype=torch.int8)
    ones = torch.ones(96, 1)
    wider = torch.cat((levels, torch.zeros(96, 4, dtype=torch.int8)), 1)  # no whole tiles
    tiled, plain = linear_w8a8.pack(levels, ones), linear_w8a8.pack(wider, ones)
    for rows in (1, 4, 15, 16, 17, 32, 33, 193, 250):
        x = torch.randint(-128, 128, (rows, 128)).float()
        padded = torch.cat((x, torch.zeros(rows, 4)), 1)
        found = linear_w8a8.linear(x, *tiled, None, 96, 1.0)
        assert torch.equal(found, linear_w8a8.linear(padded, *plain, None, 96, 1.0))
        assert torch.equal(found, x @ levels.float().T)
