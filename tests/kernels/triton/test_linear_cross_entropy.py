"""Fused linear layer and loss against float64: every reduction and term, gradients, layouts."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.triton.accuracy import error_of, exact_gradients, random
from tests.kernels.triton.conftest import INTERPRETED

from ridgeline.errors import InputError
from ridgeline.kernels.linear_cross_entropy import (
    linear_cross_entropy,
    linear_cross_entropy_reference,
)

TERMS = {
    "plain": {},
    "smoothed": {"label_smoothing": 0.1},
    "z": {"z_loss": 1e-2},
    "capped": {"softcap": 3.0},
    "all": {"label_smoothing": 0.2, "z_loss": 1e-3, "softcap": 5.0},
}


def problem(rows, size, classes, dtype, device, *, bias=False):
    made = {"dtype": dtype, "device": device}
    x, weight = random(rows, size, **made), random(classes, size, seed=1, **made)
    target = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(2))
    target[::3] = -100
    return x, weight, target.to(device), random(classes, seed=3, **made) if bias else None


def check(x, weight, target, bias, *, upper=None, **terms):
    """No worse than the same step by step in the same dtype, or twenty roundings."""
    leaves = [one.detach().requires_grad_() for one in (x, weight, bias) if one is not None]

    def with_(function, x, weight, bias=None):
        return [function(x, weight, target, bias, **terms)]

    (loss,) = with_(linear_cross_entropy, *leaves)
    (eager,) = with_(linear_cross_entropy_reference, *leaves)
    assert loss.dtype == torch.float32
    assert loss.shape == eager.shape
    upper = torch.ones_like(loss) if upper is None else upper
    found = [loss, *torch.autograd.grad(loss, leaves, upper)]
    theirs = [eager, *torch.autograd.grad(eager, leaves, upper)]

    def exact(*wide):
        return with_(linear_cross_entropy_reference, *wide)

    wanted = exact(*(one.detach().double() for one in leaves))
    wanted += exact_gradients(exact, leaves, [upper])
    names = ["loss", "x", "weight", "bias"][: len(found)]
    for name, one, other, right in zip(names, found, theirs, wanted, strict=True):
        assert one.dtype == other.dtype
        limit = max(1.1 * error_of(other, right), 20 * torch.finfo(one.dtype).eps / 4)
        assert error_of(one, right) <= limit, (name, error_of(one, right), error_of(other, right))


@pytest.mark.parametrize(
    "terms",
    [
        pytest.param(terms, id=name, marks=() if name in ("plain", "all") else pytest.mark.slow)
        for name, terms in TERMS.items()
    ],
)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_and_gradients_are_those_of_float64(device, reduction, terms):
    x, weight, target, bias = problem(11, 24, 103, torch.float32, device, bias=True)
    upper = random(11, dtype=torch.float32, device=device) if reduction == "none" else None
    check(x, weight, target, bias, reduction=reduction, upper=upper, **terms)
    check(x, weight, target, None, reduction=reduction, upper=upper, **terms)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_half_precision_is_no_worse_than_step_by_step(device, reduction):
    x, weight, target, _ = problem(90, 32, 300, torch.float16, device)
    check(x / 4, weight, target, None, reduction=reduction, label_smoothing=0.1)


def test_a_loss_scale_reaches_gradients_of_half_precision_before_they_are_rounded(device):
    x, weight, target, _ = problem(70, 8, 40, torch.float16, device)
    x.requires_grad_()
    scale = 2.0**14
    loss = linear_cross_entropy(x / 8, weight, target, reduction="mean")
    (scaled,) = torch.autograd.grad(loss * scale, x)
    wide = x.detach().float().requires_grad_()
    loss = linear_cross_entropy_reference(wide / 8, weight.float(), target)
    (wanted,) = torch.autograd.grad(loss, wide)
    assert error_of(scaled.float() / scale, wanted) < 3e-3


def test_many_chunks_give_what_one_gives(device):
    x, weight, target, _ = problem(140, 16, 37, torch.float32, device)
    check(x, weight, target, None, reduction="mean")
    upper = random(140, dtype=torch.float32, device=device)
    check(x, weight, target, None, reduction="none", upper=upper)


def test_expanded_gradients_and_transposed_inputs_are_read_as_they_lie(device):
    x, weight, target, _ = problem(12, 8, 33, torch.float32, device)
    x, weight = x.t().contiguous().t(), weight.t().contiguous().t()
    check(x, weight, target, None, reduction="none", upper=torch.ones((), device=device).expand(12))
    check(x.view(2, 6, 8), weight, target.view(2, 6), None, reduction="sum")


def test_each_row_of_an_unreduced_loss_has_its_own_gradient(device):
    x, weight, target, _ = problem(6, 8, 20, torch.float32, device)
    x.requires_grad_()
    losses = linear_cross_entropy(x, weight, target, reduction="none")
    upper = torch.zeros(6, device=device)
    upper[4] = 1.0
    (dx,) = torch.autograd.grad(losses, x, upper)
    assert torch.equal(dx.abs().sum(1) > 0, upper > 0)


def test_no_gradient_is_asked_for_and_none_is_made(device):
    x, weight, target, _ = problem(6, 8, 20, torch.float32, device)
    weight.requires_grad_()
    with torch.no_grad():
        alone = linear_cross_entropy(x, weight, target)
    assert not alone.requires_grad
    torch.testing.assert_close(alone, linear_cross_entropy(x, weight, target).detach())
    loss = linear_cross_entropy(x.clone().requires_grad_(), weight.detach(), target)
    loss.backward()  # a frozen weight


def test_inputs_stay_and_a_kept_graph_gives_the_same_twice(device):
    x, weight, target, _ = problem(6, 8, 20, torch.float32, device)
    before = x.clone(), weight.clone()
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    loss = linear_cross_entropy(x, weight, target)
    first = torch.autograd.grad(loss, leaves, torch.full((), 3.0, device=device), retain_graph=True)
    second = torch.autograd.grad(loss, leaves, torch.full((), 3.0, device=device))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b.detach()) for a, b in zip(before, leaves, strict=True))


@pytest.mark.parametrize("rows", [0, 5])
def test_rows_that_are_all_ignored_have_no_gradient(device, rows):
    x, weight, target, _ = problem(rows, 8, 20, torch.float32, device)
    target = torch.full_like(target, -100)
    x.requires_grad_()
    weight.requires_grad_()
    assert float(linear_cross_entropy(x, weight, target, reduction="sum").detach()) == 0.0
    loss = linear_cross_entropy(x, weight, target)
    assert bool(loss.isnan())
    gradients = torch.autograd.grad(loss, (x, weight), torch.zeros((), device=device) + 1)
    assert all(not bool(one.any()) for one in gradients)


@pytest.mark.skipif(not INTERPRETED, reason="counted under the interpreter")
def test_each_interpreter_logit_is_read_and_written_and_nothing_outside(device):
    from tests.kernels.triton.memory import watched

    from ridgeline.kernels.triton import linear_cross_entropy as kernel

    rows, classes = 5, 5000
    logits = random(rows, classes, dtype=torch.float16, device=device)
    target = torch.arange(rows, device=device)
    losses, normalizers, weights = (torch.ones(rows, device=device) for _ in "lnw")
    with watched() as traffic:
        kernel.of_chunk(logits, target, losses, normalizers, weights, -100, 0.0, 0.0, 0.0)
    per_row = 8 + 4 + 4 + 4  # target, weight, loss, normaliser
    assert traffic.unique_bytes == 2 * logits.nbytes + rows * per_row
    assert traffic.bytes_stored_twice == 0
    assert traffic.bytes_outside(logits, target, losses, normalizers, weights) == 0


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_torch_checks_the_operators_and_compiles_them_whole(device, reduction):
    x, weight, target, _ = problem(7, 8, 20, torch.float32, device)
    leaves = (x.requires_grad_(), weight.requires_grad_())
    given = (*leaves, None, target, -100, 0.1, 0.0, 0.0)
    operators = torch.ops.ridgeline
    torch.library.opcheck(operators.linear_cross_entropy_rows.default, given)
    torch.library.opcheck(
        operators.linear_cross_entropy_reduced.default, (*given, True, True, True)
    )

    def loss(x, weight):
        return linear_cross_entropy(x, weight, target, reduction=reduction).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    eager = torch.autograd.grad(loss(*leaves), leaves)
    found = torch.autograd.grad(compiled(*leaves), leaves)
    for a, b in zip(eager, found, strict=True):
        torch.testing.assert_close(a, b)


def test_what_does_not_fit_is_refused(device):
    x, weight, target, _ = problem(6, 8, 20, torch.float32, device)
    with pytest.raises(InputError, match="do not fit"):
        linear_cross_entropy(x, weight, target[:5])
    with pytest.raises(InputError, match="known: mean, sum, none"):
        linear_cross_entropy(x, weight, target, reduction="median")
    with pytest.raises(InputError, match="give 0 to 1"):
        linear_cross_entropy(x, weight, target, label_smoothing=2.0)


def test_a_target_outside_of_the_classes_is_loud(device):
    x, weight, target, _ = problem(3, 8, 20, torch.float32, device)
    target[1] = 20
    losses = linear_cross_entropy(x, weight, target, reduction="none")
    assert bool(losses[1].isnan())
    assert bool(losses[2].isfinite())
