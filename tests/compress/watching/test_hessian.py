"""Hessians summed by blocks, and what GPTQ walks along, against plain products in float64."""

from __future__ import annotations

import pytest
import torch

from ridgeline.compress.watching.statistics import add_products, inverse_factor, mirror


@pytest.mark.parametrize("width", [1, 40, 256, 300, 700])
def test_sums_over_chunks_are_those_of_all_inputs(width: int) -> None:
    x = torch.randn(90, width, generator=torch.Generator().manual_seed(0))
    sums = torch.zeros(width, width)
    for chunk in x.split(40):
        add_products(sums, chunk)
    whole = x.double().T @ x.double()
    torch.testing.assert_close(mirror(sums).double(), whole, rtol=1e-4, atol=1e-4)
    assert torch.equal(sums[256:, :256], sums[:256, 256:].T)


@pytest.mark.parametrize("width", [60, 513])  # the larger one is inverted in parts
def test_the_factor_is_cholesky_of_the_inverse(width: int) -> None:
    generator = torch.Generator().manual_seed(1)
    mixed = torch.randn(width, width, generator=generator) / 8 + torch.eye(width)
    x = torch.randn(9 * width, width, generator=generator) @ mixed
    hessian = 2 / len(x) * x.T @ x
    factor, notices = inverse_factor(hessian)
    damped = hessian.double() + 0.01 * hessian.diagonal().mean() * torch.eye(width)
    expected = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    assert factor is not None
    assert notices == ()
    torch.testing.assert_close(factor.double(), expected, rtol=1e-3, atol=1e-5)
    assert not bool(factor.tril(-1).any())
