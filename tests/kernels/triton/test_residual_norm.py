"""Norms of a residual sum in Triton against float64: results, every gradient, bytes, layouts."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.triton.accuracy import assert_rounded_once, exact_gradients, random
from tests.kernels.triton.conftest import INTERPRETED

from ridgeline.errors import InputError
from ridgeline.kernels.residual_norm import (
    LONGEST_ROW,
    residual_layer_norm,
    residual_norm_reference,
    residual_rms_norm,
)

DTYPES = [torch.float32, torch.float16]
SHAPES = [(1, 5), (5, 7), (3, 11, 96), (2, 1025)]


def normalised(x, weight, bias, residual, *, centred, offset):
    if centred:
        return residual_layer_norm(x, weight, bias, 1e-5, residual=residual)
    return residual_rms_norm(x, weight, 1e-5, residual=residual, offset=offset)


def check(x, weight, bias, residual, dy, dh, *, centred, offset=0.0):
    """Results and gradients against float64 of the same numbers, with h rounded as models do."""
    leaves = [one for one in (x, residual, weight, bias) if one is not None]
    for leaf in leaves:
        leaf.requires_grad_()
    y, h = normalised(x, weight, bias, residual, centred=centred, offset=offset)
    upper = [dy] if residual is None else [dy, dh]
    found = torch.autograd.grad([y, h][: len(upper)], leaves, upper)
    rounded = x.detach() if residual is None else (x + residual).detach()
    assert torch.equal(h, rounded)

    def exact(h, weight=None, bias=None):
        y, h = residual_norm_reference(
            h, None, weight, bias, 1e-5, 0.0 if centred else offset, centred=centred
        )
        return [y] if residual is None else [y, h]

    vectors = [one for one in (weight, bias) if one is not None]
    inputs = [rounded, *vectors]
    assert_rounded_once(y, exact(*(one.detach().double() for one in inputs))[0], "y")
    dx, *rest = exact_gradients(exact, inputs, upper)
    for gradient, leaf in zip(found, leaves, strict=True):
        assert gradient.dtype == leaf.dtype
        assert gradient.shape == leaf.shape
    for gradient in found[: 1 if residual is None else 2]:
        assert_rounded_once(gradient, dx, "dx")
    for gradient, wanted in zip(found[-len(rest) :] if rest else [], rest, strict=True):
        assert_rounded_once(gradient, wanted, "dw")


@pytest.mark.parametrize("centred", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_and_gradients_are_those_of_float64(device, shape, dtype, centred):
    made = {"dtype": dtype, "device": device}
    x, residual, dy, dh = (random(*shape, seed=seed, **made) for seed in range(4))
    weight, bias = (random(shape[-1], seed=seed, **made) for seed in (5, 6))
    check(x, weight, bias if centred else None, residual, dy, dh, centred=centred, offset=1.0)
    check(x.detach(), weight.detach(), None, None, dy, None, centred=centred)


def test_weights_may_be_wider_than_activations(device):
    x, dy = (random(4, 33, dtype=torch.float16, device=device, seed=s) for s in (0, 1))
    weight, bias = (random(33, dtype=torch.float32, device=device, seed=s) for s in (2, 3))
    check(x, weight, bias, None, dy, None, centred=True)
    check(x.detach(), None, None, None, dy, None, centred=False)


def test_expanded_gradients_and_transposed_inputs_are_read_as_they_lie(device):
    made = {"dtype": torch.float32, "device": device}
    x = random(48, 6, **made).t()
    weight = random(48, seed=1, **made)
    for dy in (random(1, 1, **made).expand(6, 48), random(48, **made).expand(6, 48)):
        check(x.detach(), weight.detach(), None, None, dy, None, centred=False)
    residual = random(6, 96, **made)[:, ::2]
    dh = random(48, 6, seed=3, **made).t()
    check(x.detach(), weight.detach(), None, residual, dh, dh, centred=True)


def test_the_gradient_of_one_result_alone_is_whole(device):
    made = {"dtype": torch.float32, "device": device}
    x, residual = (random(3, 40, seed=s, **made).requires_grad_() for s in (0, 1))
    weight = random(40, seed=2, **made).requires_grad_()
    y, h = residual_rms_norm(x, weight, 1e-6, residual=residual)
    y.square().sum().backward(retain_graph=True)
    assert weight.grad is not None
    assert float(weight.grad.norm()) > 0
    assert torch.equal(x.grad, residual.grad)
    x.grad = weight.grad = None
    h.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    assert torch.equal(weight.grad, torch.zeros_like(weight))


@pytest.mark.parametrize("centred", [False, True], ids=["rms", "layer"])
def test_rows_of_one_number_have_finite_gradients(device, centred):
    x = torch.tensor([[2.0], [0.0], [-3e-30]], device=device, requires_grad=True)
    y, _ = normalised(x, None, None, None, centred=centred, offset=0.0)
    y.sum().backward()
    assert bool(torch.isfinite(y).all())
    assert bool(torch.isfinite(x.grad).all())


def test_no_rows_give_gradients_of_zero(device):
    x = torch.empty(0, 8, device=device, requires_grad=True)
    weight, bias = (torch.ones(8, device=device, requires_grad=True) for _ in "wb")
    y, _ = residual_layer_norm(x, weight, bias, 1e-5)
    y.sum().backward()
    assert x.grad.shape == (0, 8)
    assert torch.equal(weight.grad, torch.zeros(8, device=device))
    assert torch.equal(bias.grad, torch.zeros(8, device=device))


def test_gradients_are_the_same_at_every_run_and_no_input_changes(device):
    made = {"dtype": torch.float16, "device": device}
    x, residual, dy = (random(70, 65, seed=s, **made) for s in range(3))
    weight = random(65, seed=4, **made)
    before = [one.clone() for one in (x, residual, weight, dy)]
    runs = []
    for _ in range(2):
        leaves = [one.detach().requires_grad_() for one in (x, residual, weight)]
        y, _ = residual_rms_norm(leaves[0], leaves[2], 1e-6, residual=leaves[1])
        runs.append(torch.autograd.grad(y, leaves, dy))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, (x, residual, weight, dy), strict=True))


def test_rms_norm_without_gradient_works(device):
    x = random(3, 16, dtype=torch.float32, device=device)
    weight = torch.ones(16, device=device, requires_grad=True)
    with torch.no_grad():
        y, h = residual_rms_norm(x, weight, 1e-6)
    assert not y.requires_grad
    assert h is x


@pytest.mark.skipif(not INTERPRETED, reason="counted under the interpreter")
@pytest.mark.parametrize("centred", [False, True], ids=["rms", "layer"])
def test_each_interpreter_byte_is_touched_once_and_none_outside(device, centred):
    from tests.kernels.triton.memory import watched

    from ridgeline.kernels.triton import residual_norm as kernel

    rows, size = 37, 160
    made = {"dtype": torch.float16, "device": device}
    x, residual, dy, dh = (random(rows, size, seed=s, **made) for s in range(4))
    weight, bias = (random(size, seed=s, **made) for s in (5, 6))
    bias = bias if centred else None
    with watched() as forward:
        y, h, mean, rstd = kernel.forward(x, residual, weight, bias, 1e-5, 0.0, centred=centred)
    vectors = (2 if centred else 1) * size * 2
    per_row = (2 if centred else 1) * rows * 4
    assert forward.unique_bytes == 4 * rows * size * 2 + vectors + per_row
    assert forward.bytes_stored_twice == 0
    assert forward.bytes_outside(x, residual, weight, *([bias] if centred else []), y, h, mean,
                                 rstd) == 0  # fmt: skip
    with watched() as backward:
        kernel.backward(dy, dh, h, weight, mean, rstd, 0.0, centred=centred)
    programs = 16  # two for each of the interpreter's eight processors, as rows are enough
    parts = (2 if centred else 1) * programs * size * 4
    assert backward.unique_bytes == 4 * rows * size * 2 + size * 2 + per_row + parts
    assert backward.bytes_stored_twice == 0


@pytest.mark.parametrize(
    "centred", [pytest.param(False, marks=pytest.mark.slow), True], ids=["rms", "layer"]
)
def test_torch_checks_the_operator_and_compiles_it_whole(device, centred):
    x, residual = (torch.randn(4, 24, device=device, requires_grad=True) for _ in "xr")
    weight, bias = (torch.randn(24, device=device, requires_grad=True) for _ in "wb")
    operator = torch.ops.ridgeline.residual_norm.default
    for added in (residual, None):
        given = (x, added, weight, bias if centred else None, 1e-5, 0.0, centred)
        torch.library.opcheck(operator, given)
    with torch.no_grad():
        _, h, mean, rstd = operator(x, residual, weight, None, 1e-5, 0.0, centred)
    backward = torch.ops.ridgeline.residual_norm_backward.default
    torch.library.opcheck(backward, (h, h, h.detach(), weight.detach(), mean, rstd, 0.0, centred))

    def layer(x, residual, weight):
        y, h = normalised(x, weight, bias, residual, centred=centred, offset=0.0)
        return (y * h).sum()

    eager = torch.autograd.grad(layer(x, residual, weight), (x, residual, weight))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x, residual, weight), (x, residual, weight))
    for a, b in zip(eager, found, strict=True):
        torch.testing.assert_close(a, b)


def test_what_does_not_fit_is_refused(device):
    x = torch.ones(2, 8, device=device)
    with pytest.raises(InputError, match=r"weight is \(4,\) for rows of 8; give \[8\]"):
        residual_rms_norm(x, x[0, :4], 1e-5)
    with pytest.raises(InputError, match="give both alike"):
        residual_rms_norm(x, None, 1e-5, residual=x.half())
    with pytest.raises(InputError, match=f"takes at most {LONGEST_ROW}"):
        residual_rms_norm(torch.ones(1, LONGEST_ROW + 1, device=device), None, 1e-5)


@pytest.mark.parametrize("mean", [100.0, 1e4])
def test_a_layer_norm_far_from_zero_is_as_far_off_as_torchs_to_a_factor_of_two(device, mean):
    """A mean in float32 is off by its own roundings, which are large beside small deviations."""
    made = {"dtype": torch.float32, "device": device}
    x, dy = random(8, 250, seed=0, **made) + mean, random(8, 250, seed=1, **made)
    weight, bias = random(250, seed=2, **made), random(250, seed=3, **made)
    leaves = [one.detach().requires_grad_() for one in (x, weight, bias)]
    ours = residual_layer_norm(*leaves, 1e-5, offset=1.0)[0]

    def plain(x, weight, bias):
        return torch.nn.functional.layer_norm(x, (250,), 1 + weight, bias, 1e-5)

    theirs = plain(*leaves)
    wide = [one.detach().double().requires_grad_() for one in leaves]
    exact = plain(*wide)
    found = [ours, *torch.autograd.grad(ours, leaves, dy)]
    torchs = [theirs, *torch.autograd.grad(theirs, leaves, dy)]
    wanted = [exact, *torch.autograd.grad(exact, wide, dy.double())]
    for one, other, right in zip(found, torchs, wanted, strict=True):
        ours, theirs = ((got.detach() - right.detach()).norm() for got in (one, other))
        assert ours <= 2 * theirs + 1e-6 * right.detach().norm(), (ours, theirs)
