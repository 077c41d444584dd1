"""On a CPU the training operators run in PyTorch: their gradients are those of their references."""

from __future__ import annotations

import pytest
import torch

from ridgeline.errors import InputError
from ridgeline.kernels.adamw import adamw_step
from ridgeline.kernels.gated_product import ACTIVATIONS, gated_product, gated_product_reference
from ridgeline.kernels.linear_cross_entropy import (
    linear_cross_entropy,
    linear_cross_entropy_reference,
)
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


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "terms", [{}, {"label_smoothing": 0.1, "z_loss": 1e-3, "softcap": 4.0}], ids=["plain", "all"]
)
def test_losses_on_a_cpu_have_the_gradients_of_their_reference(reduction, terms):
    leaves = leaves_of((150, 12), (41, 12), (41,))
    target = torch.arange(150) % 41
    target[::4] = -100
    x, weight, bias = leaves
    given = {"reduction": reduction, **terms}
    ours = [linear_cross_entropy(x, weight, target, bias, **given)]
    assert_same(ours, [linear_cross_entropy_reference(x, weight, target, bias, **given)], leaves)


def test_a_target_outside_of_the_classes_is_refused_on_a_cpu():
    x, weight = leaves_of((3, 4), (7, 4))
    with pytest.raises(InputError, match="outside of the 7 classes"):
        linear_cross_entropy(x, weight, torch.tensor([0, 7, 1]))


def peak_bytes(work):
    """The most memory that was taken at once beyond what was there before."""
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        work()
    events = profile.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


@pytest.mark.sweep(every=2)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_fused_loss_takes_a_tenth_of_the_memory_of_eager(reduction):
    rows, size, classes = 1024, 16, 8192
    x, weight = leaves_of((rows, size), (classes, size))
    target = torch.arange(rows)
    matrix = rows * classes * 4

    def run(loss):
        loss(x, weight, target, reduction=reduction).sum().backward()
        x.grad = weight.grad = None

    for loss in (linear_cross_entropy, linear_cross_entropy_reference):
        run(loss)
    eager = peak_bytes(lambda: run(linear_cross_entropy_reference))
    ours = peak_bytes(lambda: run(linear_cross_entropy))
    assert eager > 2.5 * matrix
    assert ours < eager / 10, (ours / matrix, eager / matrix)


@pytest.mark.slow
def test_the_fused_loss_takes_a_tenth_at_8192_tokens_of_128256_classes():
    """Ours is measured as it is; eager's 12 GB follow from two parts of the rows, on a line."""
    rows, size, classes = 8192, 16, 128256
    weight = torch.randn(classes, size, requires_grad=True)

    def peak_of(loss, count):
        x = torch.randn(count, size, requires_grad=True)
        target = torch.randint(classes, (count,))

        def run():
            loss(x, weight, target).backward()
            weight.grad = None

        return peak_bytes(run)

    peak_of(linear_cross_entropy, 16)  # what is made once is not counted
    ours = peak_of(linear_cross_entropy, rows)
    parts = [peak_of(linear_cross_entropy_reference, count) for count in (256, 512, 768)]
    step = parts[1] - parts[0]
    assert parts[2] - parts[1] == pytest.approx(step, rel=0.02)
    eager = parts[0] + (rows / 256 - 1) * step
    assert eager > 2.5 * rows * classes * 4
    assert ours < eager / 10, (ours / 1e9, eager / 1e9)


def test_adamw_on_a_cpu_is_that_of_torch():
    leaves = leaves_of((3, 4), (5,))
    optimizer = torch.optim.AdamW(leaves, lr=0.01, weight_decay=0.1)
    mine = [one.detach().clone() for one in leaves]
    means, squares = ([torch.zeros_like(one) for one in mine] for _ in "ms")
    for step in (1, 2, 3):
        for leaf in leaves:
            leaf.grad = torch.randn_like(leaf)
        adamw_step(
            mine,
            [leaf.grad for leaf in leaves],
            means,
            squares,
            learning_rate=0.01,
            betas=(0.9, 0.999),
            eps=1e-8,
            weight_decay=0.1,
            step=step,
        )
        optimizer.step()
    for one, other in zip(mine, leaves, strict=True):
        torch.testing.assert_close(one, other.detach())
