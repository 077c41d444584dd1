"""Muon over many matrices: symmetric products against float64, steps against `torch.optim.Muon`."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.triton.accuracy import error_of, random
from tests.kernels.triton.conftest import INTERPRETED

from ridgeline.errors import InputError
from ridgeline.kernels.muon import (
    muon_step,
    orthogonalise,
    symmetric_product_reference,
)

SHAPES = [(8, 8), (70, 33), (33, 70), (8, 8), (1, 5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 70, 33), (1, 131, 40)], ids=str)
def test_symmetric_products_are_those_of_float64_and_symmetric(device, shape, dtype):
    product = torch.ops.ridgeline.symmetric_product
    x = random(*shape, dtype=dtype, device=device) / shape[2] ** 0.5
    gram = product(x, 0.0, 1.0)
    update = product(gram, -4.775, 2.0315)
    for found, given, numbers in ((gram, x, (0.0, 1.0)), (update, gram, (-4.775, 2.0315))):
        exact = symmetric_product_reference(given.double(), *numbers)
        assert torch.equal(found, found.transpose(1, 2))
        roundings = 4 if dtype == torch.float32 else 2  # of sums, which a GPU does one by one
        assert error_of(found, exact) <= roundings * torch.finfo(dtype).eps
    transposed = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(product(transposed, 0.0, 1.0), gram)


def test_singular_values_come_near_one(device):
    x = random(3, 40, 24, dtype=torch.float32, device=device)
    values = torch.linalg.svdvals(orthogonalise(x, 5))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3


@pytest.mark.parametrize("nesterov", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_three_steps_are_those_of_torch_in_float32(device, nesterov, monkeypatch):
    made = {"dtype": torch.float32, "device": device}
    ours = [random(*shape, **made) for shape in SHAPES]
    theirs = [one.clone().requires_grad_() for one in ours]
    momenta = [torch.zeros_like(one) for one in ours]
    optimizer = torch.optim.Muon(theirs, lr=0.02, nesterov=nesterov)
    # torch iterates in bfloat16 alone; so that no rounding hides a difference, it does not here.
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.clone())
    for step in range(3):
        gradients = [random(*one.shape, seed=step, **made) for one in ours]
        for one, gradient in zip(theirs, gradients, strict=True):
            one.grad = gradient
        optimizer.step()
        muon_step(
            ours, gradients, momenta, learning_rate=0.02, nesterov=nesterov, dtype=torch.float32
        )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not INTERPRETED, reason="counted under the interpreter")
def test_each_interpreter_result_is_written_once_and_nothing_outside(device):
    from tests.kernels.triton.memory import watched

    x = random(2, 150, 40, dtype=torch.float16, device=device)
    with watched() as traffic:
        gram = torch.ops.ridgeline.symmetric_product(x, 0.0, 1.0)
    assert traffic.unique_bytes == x.nbytes + gram.nbytes
    assert traffic.bytes_stored_twice == traffic.bytes_outside(x, gram) == 0


def test_torch_checks_the_operator_and_compiles_the_step_whole(device):
    x = torch.randn(2, 9, 5, device=device)
    torch.library.opcheck(torch.ops.ridgeline.symmetric_product.default, (x, 0.0, 1.0))
    compiled = torch.compile(orthogonalise, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), orthogonalise(x))


def test_what_does_not_fit_is_refused(device):
    one = torch.ones(4, 4, device=device)
    with pytest.raises(InputError, match="give one length"):
        muon_step([one], [], [one], learning_rate=0.1)
    with pytest.raises(InputError, match="steps matrices"):
        muon_step([one[0]], [one[0]], [one[0]], learning_rate=0.1)
