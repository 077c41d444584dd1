"""Gated products in Triton against float64: results, both gradients, bytes, layouts."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.triton.accuracy import assert_rounded_once, exact_gradients, random
from tests.kernels.triton.conftest import INTERPRETED

from ridgeline.errors import InputError
from ridgeline.kernels.gated_product import ACTIVATIONS, gated_product, gated_product_reference


def check(gate, up, dy, activation):
    leaves = [one.detach().requires_grad_() for one in (gate, up)]
    y = gated_product(*leaves, activation)
    found = torch.autograd.grad(y, leaves, dy)
    wide = [one.detach().double() for one in leaves]
    assert_rounded_once(y, gated_product_reference(*wide, activation), "y")

    def exact(gate, up):
        return [gated_product_reference(gate, up, activation)]

    for name, gradient, wanted in zip(
        ("gate", "up"), found, exact_gradients(exact, leaves, [dy]), strict=True
    ):
        assert gradient.dtype == gate.dtype
        assert_rounded_once(gradient, wanted, name)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(17,), (5, 7), (2, 3, 1025)], ids=str)
def test_results_and_gradients_are_those_of_float64(device, shape, dtype, activation):
    made = {"dtype": dtype, "device": device}
    check(*(2 * random(*shape, seed=s, **made) for s in range(3)), activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_far_from_zero_nothing_overflows(device, activation):
    gate = torch.tensor([-1e4, -90.0, -9.0, 0.0, 9.0, 90.0, 1e4], device=device)
    check(gate, torch.ones_like(gate), torch.ones_like(gate), activation)


def test_halves_expanded_gradients_and_transposed_inputs_are_read_as_they_lie(device):
    made = {"dtype": torch.float32, "device": device}
    both = random(2, 5, 2 * 40, **made)
    check(*both.chunk(2, -1), random(1, 1, 1, **made).expand(2, 5, 40), "silu")
    check(random(9, 4, **made).t(), random(9, 4, seed=1, **made).t(), random(4, 9, **made), "gelu")


def test_nothing_gives_nothing(device):
    gate = torch.empty(0, 8, device=device, requires_grad=True)
    up = torch.empty(0, 8, device=device, requires_grad=True)
    gated_product(gate, up).sum().backward()
    assert gate.grad.shape == up.grad.shape == (0, 8)


@pytest.mark.skipif(not INTERPRETED, reason="counted under the interpreter")
def test_each_interpreter_byte_is_touched_once_and_none_outside(device):
    from tests.kernels.triton.memory import watched

    from ridgeline.kernels.triton import gated_product as kernel

    gate, up, dy = (random(7, 333, dtype=torch.float16, device=device, seed=s) for s in range(3))
    with watched() as forward:
        y = kernel.forward(gate, up, "silu")
    assert forward.unique_bytes == forward.total_bytes == 3 * gate.nbytes
    assert forward.bytes_stored_twice == forward.bytes_outside(gate, up, y) == 0
    with watched() as backward:
        gradients = kernel.backward(dy, gate, up, "silu")
    assert backward.unique_bytes == backward.total_bytes == 5 * gate.nbytes
    assert backward.bytes_stored_twice == backward.bytes_outside(gate, up, dy, *gradients) == 0


def test_torch_checks_the_operator_and_compiles_it_whole(device):
    gate, up = (torch.randn(3, 24, device=device, requires_grad=True) for _ in "gu")
    for activation in ACTIVATIONS:
        torch.library.opcheck(torch.ops.ridgeline.gated_product.default, (gate, up, activation))
    given = (gate.detach(), gate.detach(), up.detach(), "silu")
    torch.library.opcheck(torch.ops.ridgeline.gated_product_backward.default, given)
    compiled = torch.compile(gated_product, fullgraph=True, backend="aot_eager")
    eager = torch.autograd.grad(gated_product(gate, up).sum(), (gate, up))
    found = torch.autograd.grad(compiled(gate, up).sum(), (gate, up))
    assert all(torch.equal(a, b) for a, b in zip(eager, found, strict=True))


def test_what_does_not_fit_is_refused(device):
    gate = torch.ones(2, 8, device=device)
    with pytest.raises(InputError, match="give both alike"):
        gated_product(gate, gate[:, :4])
    with pytest.raises(InputError, match="known: silu, gelu_tanh, gelu"):
        gated_product(gate, gate, "relu")
