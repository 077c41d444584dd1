"""Ranges found in one call against the same share by share."""

from __future__ import annotations

import pytest
import torch

from ridgeline.kernels import range_search
from ridgeline.records.scheme import NumberFormat

SHARES = tuple(1 - 0.02 * step for step in range(41))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("n", [1, 16, 37, 128])
def test_ranges_are_those_that_lose_least(dtype: torch.dtype, symmetric: bool, n: int):
    torch.manual_seed(0)
    numbers = (torch.randn(150, n) * torch.logspace(-3, 2, 150)[:, None]).to(dtype)
    numbers[3] = 0.0
    numbers[4] = numbers[4].abs()
    for bits, costs in ((4, None), (3, torch.rand(5, n) + 0.1), (8, torch.rand(1, n))):
        form = NumberFormat(kind="int", bits=bits, symmetric=symmetric, share="group", group=n)
        found = range_search.search_ranges(numbers, costs, form, SHARES)
        expected = range_search.reference(numbers, costs, form, SHARES)
        for one, other in zip(found, expected, strict=True):
            # Shares that lose alike but for the order of sums may be taken for one another.
            assert float(((one - other).abs() <= 1e-5 * other.abs()).float().mean()) > 0.97
