"""Sums of products of columns against the same in float64."""

from __future__ import annotations

import pytest
import torch

from ridgeline.kernels import column_products


@pytest.mark.parametrize("columns", [1, 7, 48, 49, 200])
def test_the_upper_triangle_is_the_reference_for_any_number_of_rows(columns: int) -> None:
    torch.manual_seed(0)
    for tokens in (0, 1, 2, 33, 515, 1030):
        x = torch.randn(tokens, columns).bfloat16()
        before = torch.randn(columns, columns)
        found, expected = before.clone(), before.clone()
        column_products.add_column_products(found, x)
        column_products.reference(expected, x)
        assert torch.allclose(found.triu(), expected.triu(), rtol=1e-5, atol=1e-4)


def test_sums_of_small_integers_are_exact() -> None:
    torch.manual_seed(0)
    x = torch.randint(-8, 9, (600, 130)).bfloat16()
    sums = torch.zeros(130, 130)
    column_products.add_column_products(sums, x)
    assert torch.equal(sums.triu(), (x.double().T @ x.double()).triu().float())
