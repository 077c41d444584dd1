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


@pytest.mark.parametrize("columns", [1, 7, 48, 49, 200])
def test_rounded_numbers_lose_no_more_of_a_column_than_their_steps(columns: int) -> None:
    torch.manual_seed(0)
    for tokens in (1, 2, 33, 515, 1030):
        x = torch.randn(tokens, columns).bfloat16() * torch.logspace(-9, 9, columns).bfloat16()
        before = torch.randn(columns, columns)
        found = before.clone()
        column_products.add_rounded_products(found, x)
        wide, expected = x.double(), before.double()
        for part in wide.split(1024):
            steps = part.abs().amax(0) / 127
            levels = (part / steps).round()  # also of ties, which lie between two levels
            expected += (levels.T @ levels) * steps * steps[:, None]
        scale = wide.square().sum(0).sqrt()
        off = (found.double() - expected).triu().abs() / (scale * scale[:, None] + before.abs())
        assert (off < 2e-2 / max(tokens, 1) ** 0.5 + 1e-5).all()


def test_integers_that_are_bytes_already_are_summed_exactly() -> None:
    torch.manual_seed(0)
    x = torch.randint(-127, 128, (1500, 130)).bfloat16()
    x[0], x[1400] = 127, -127
    sums = torch.zeros(130, 130)
    column_products.add_rounded_products(sums, x)
    assert torch.allclose(sums.triu(), (x.double().T @ x.double()).triu().float(), rtol=1e-6)


def test_what_is_not_finite_stays_so_and_zeros_are_zeros() -> None:
    x = torch.ones(40, 60).bfloat16()
    x[3, 5], x[4, 20], x[:, 30], x[:, 50] = torch.nan, torch.inf, 0, 1e-38
    sums = torch.zeros(60, 60)
    column_products.add_rounded_products(sums, x)
    finite = sums.triu().isfinite().all(0)
    assert (~finite).nonzero().flatten()[:2].tolist() == [5, 6]
    assert not sums[5, 5:].isfinite().any()
    assert not sums[20, 20:].isfinite().any()
    assert sums[30, 30] == 0
    assert sums[0, 59] == 40
