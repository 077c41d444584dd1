"""On a CPU the training operators run in PyTorch: their gradients are those of their references."""

from __future__ import annotations

import pytest
import torch

from ridgeline.kernels.gated_product import ACTIVATIONS, gated_product, gated_product_reference
from ridgeline.kernels.residual_norm import (
    residual_layer_norm,
    residual_norm_reference,
    residual_rms_norm,
)
from ridgeline.kernels.rotary import rotary, rotary_reference


def assert_same(ours, theirs, leaves):
    """Results and gradients of two ways to compute the same."""
    upper = [torch.randn_like(one) for one in ours]
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    found = torch.autograd.grad(ours, leaves, upper)
    wanted = torch.autograd.grad(theirs, leaves, upper)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


def leaves_of(*shapes):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("centred", [False, True], ids=["rms", "layer"])
def test_norms_on_a_cpu_have_the_gradients_of_their_reference(centred):
    leaves = leaves_of((3, 5, 16), (3, 5, 16), (16,), (16,))[: 4 if centred else 3]
    x, residual, weight = leaves[:3]
    if centred:
        ours = residual_layer_norm(x, weight, leaves[3], 1e-5, residual=residual)
        theirs = residual_norm_reference(x, residual, weight, leaves[3], 1e-5, centred=True)
    else:
        ours = residual_rms_norm(x, weight, 1e-5, residual=residual, offset=1.0)
        theirs = residual_norm_reference(x, residual, weight, None, 1e-5, 1.0)
    assert_same(ours, theirs, leaves)


def test_norms_are_those_of_torch():
    x, weight, bias = leaves_of((4, 32), (32,), (32,))
    layer = torch.nn.functional.layer_norm(x, (32,), weight, bias)
    torch.testing.assert_close(residual_layer_norm(x, weight, bias, 1e-5)[0], layer)
    rms = torch.nn.functional.rms_norm(x, (32,), weight, 1e-5)
    torch.testing.assert_close(residual_rms_norm(x, weight, 1e-5)[0], rms)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_products_on_a_cpu_have_the_gradients_of_their_reference(activation):
    gate, up = leaves_of((4, 33), (4, 33))
    ours = [gated_product(gate, up, activation)]
    assert_same(ours, [gated_product_reference(gate, up, activation)], [gate, up])


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
def test_rotary_on_a_cpu_has_the_gradients_of_its_reference(interleaved):
    queries, keys = leaves_of((2, 4, 3, 8), (2, 1, 3, 8))
    theta = torch.randn(2, 3, 8)
    given = (queries, keys, theta.cos(), theta.sin())
    ours = rotary(*given, interleaved=interleaved)
    assert_same(ours, rotary_reference(*given, interleaved=interleaved), [queries, keys])
