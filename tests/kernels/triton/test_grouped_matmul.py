"""Matmuls of experts in Triton against float64: results, gradients, uneven and empty groups."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.triton.accuracy import error_of, exact_gradients, random
from tests.kernels.triton.conftest import INTERPRETED

from ridgeline.errors import InputError
from ridgeline.kernels.grouped_matmul import grouped_matmul, grouped_matmul_reference


def check(x, weight, ends, dy):
    """No worse than one matmul after the other in the same dtype, or four roundings."""
    leaves = [one.detach().requires_grad_() for one in (x, weight)]
    y = grouped_matmul(*leaves, ends)
    eager = grouped_matmul_reference(*leaves, ends)
    found = [y, *torch.autograd.grad(y, leaves, dy)]
    theirs = [eager, *torch.autograd.grad(eager, leaves, dy)]

    def exact(x, weight):
        return [grouped_matmul_reference(x, weight, ends)]

    wanted = exact(*(one.detach().double() for one in leaves))
    wanted += exact_gradients(exact, leaves, [dy])
    for name, one, other, right in zip(("y", "dx", "dweight"), found, theirs, wanted, strict=True):
        assert one.dtype == x.dtype
        # In float32 a GPU's libraries add in another order than ours, in fewer or more roundings.
        roundings = 2 if one.dtype == torch.float32 else 1
        limit = max(1.1 * error_of(other, right), roundings * torch.finfo(one.dtype).eps)
        assert error_of(one, right) <= limit, (name, error_of(one, right), error_of(other, right))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    "ends",
    [[150], [0, 3, 3, 70, 150], [0, 0, 0], [64, 128, 150, 150], [1, 2, 3, 4, 5, 6, 150]],
    ids=str,
)
def test_uneven_and_empty_groups_are_those_of_float64(device, ends, dtype):
    made = {"dtype": dtype, "device": device}
    x, dy = random(ends[-1], 40, **made), random(ends[-1], 70, seed=1, **made)
    weight = random(len(ends), 40, 70, seed=2, **made)
    check(x, weight, torch.tensor(ends, dtype=torch.int32, device=device), dy)


def test_transposed_weights_and_expanded_gradients_are_read_as_they_lie(device):
    made = {"dtype": torch.float32, "device": device}
    ends = torch.tensor([3, 9], dtype=torch.int32, device=device)
    x, weight = random(20, 9, **made).t(), random(2, 33, 20, **made).transpose(1, 2)
    check(x, weight, ends, random(1, 1, **made).expand(9, 33))


def test_rows_of_no_group_are_zeros_and_learn_nothing(device):
    made = {"dtype": torch.float32, "device": device}
    x = random(10, 8, **made).requires_grad_()
    weight = random(2, 8, 5, **made)
    y = grouped_matmul(x, weight, torch.tensor([2, 7], dtype=torch.int32, device=device))
    assert not bool(y[7:].any())
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert not bool(dx[7:].any())
    assert bool(dx[:7].all())


@pytest.mark.skipif(not INTERPRETED, reason="counted under the interpreter")
def test_each_interpreter_result_is_written_once_and_nothing_outside(device):
    from tests.kernels.triton.memory import watched

    from ridgeline.kernels.triton import grouped_matmul as kernel

    made = {"dtype": torch.float16, "device": device}
    x, dy, weight = random(131, 40, **made), random(131, 70, **made), random(3, 40, 70, **made)
    ends = torch.tensor([1, 130, 131], dtype=torch.int32, device=device)
    with watched() as forward:
        y = kernel.multiply(x, weight, ends)
    assert forward.unique_bytes == x.nbytes + weight.nbytes + ends.nbytes + y.nbytes
    assert forward.bytes_stored_twice == forward.bytes_outside(x, weight, ends, y) == 0
    with watched() as backward:
        dweight = kernel.gradient_of_weight(x, dy, ends)
    assert backward.unique_bytes == x.nbytes + dy.nbytes + ends.nbytes + dweight.nbytes
    assert backward.bytes_stored_twice == backward.bytes_outside(x, dy, ends, dweight) == 0


def test_torch_checks_the_operators_and_compiles_them_whole(device):
    x = torch.randn(9, 8, device=device, requires_grad=True)
    weight = torch.randn(2, 8, 5, device=device, requires_grad=True)
    ends = torch.tensor([4, 9], dtype=torch.int32, device=device)
    torch.library.opcheck(torch.ops.ridgeline.grouped_matmul.default, (x, weight, ends))
    given = (x.detach(), torch.randn(9, 5, device=device), ends)
    torch.library.opcheck(torch.ops.ridgeline.grouped_matmul_dweight.default, given)
    compiled = torch.compile(grouped_matmul, fullgraph=True, backend="aot_eager")
    eager = torch.autograd.grad(grouped_matmul(x, weight, ends).square().sum(), (x, weight))
    found = torch.autograd.grad(compiled(x, weight, ends).square().sum(), (x, weight))
    for a, b in zip(eager, found, strict=True):
        torch.testing.assert_close(a, b)


def test_what_does_not_fit_is_refused(device):
    x, weight = torch.ones(4, 8, device=device), torch.ones(2, 8, 5, device=device)
    ends = torch.tensor([2, 4], dtype=torch.int32, device=device)
    with pytest.raises(InputError, match="do not fit"):
        grouped_matmul(x[:, :4], weight, ends)
    with pytest.raises(InputError, match=r"\[2\] ends in int32"):
        grouped_matmul(x, weight, ends.long())
