"""What training operators do with arguments that nobody meant: the right thing, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.kernels.adamw import adamw_step
from ridgeline.kernels.flash_attention import flash_attention
from ridgeline.kernels.gated_product import gated_product
from ridgeline.kernels.grouped_matmul import grouped_matmul
from ridgeline.kernels.linear_cross_entropy import linear_cross_entropy
from ridgeline.kernels.muon import muon_step
from ridgeline.kernels.residual_norm import residual_layer_norm, residual_rms_norm
from ridgeline.kernels.rotary import rotary

TARGET = torch.tensor([1, -100, 4])
ENDS = torch.tensor([1, 1, 3], dtype=torch.int32)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


LAYOUTS = ("dense", "strided", "expanded", "offset")
ANGLES = (numbers(1, 7, 6), numbers(1, 7, 6) + 1)
OPERATORS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "rms norm": (lambda x, w: residual_rms_norm(x, w, 1e-5)[0], ((3, 5), (5,))),
    "layer norm": (
        lambda x, r, w, b: residual_layer_norm(x, w, b, 1e-5, residual=r),
        ((3, 5), (3, 5), (5,), (5,)),
    ),
    "silu": (gated_product, ((3, 5), (3, 5))),
    "gelu": (lambda g, u: gated_product(g, u, "gelu"), ((3, 5), (3, 5))),
    "gelu by tanh": (lambda g, u: gated_product(g, u, "gelu_tanh"), ((3, 5), (3, 5))),
    "rotary": (
        lambda q, k: rotary(q, k, *(one.to(q.dtype) for one in ANGLES)),
        ((2, 3, 7, 6), (2, 1, 7, 6)),
    ),
    "loss": (
        lambda x, w, b: linear_cross_entropy(
            x, w, TARGET, b, label_smoothing=0.1, z_loss=0.01, softcap=3.0
        ),
        ((3, 4), (5, 4), (5,)),
    ),
    "losses": (
        lambda x, w: linear_cross_entropy(x, w, TARGET, reduction="none"),
        ((3, 4), (5, 4)),
    ),
    "experts": (lambda x, w: grouped_matmul(x, w, ENDS), ((3, 4), (3, 4, 2))),
    "attention": (
        lambda q, k, v, s: tuple(flash_attention(q, k, v, sinks=s, softcap=2.0)),
        ((1, 2, 5, 4), (1, 1, 5, 4), (1, 1, 5, 4), (2,)),
    ),
}
FIRST_ALONE = sorted(OPERATORS.keys() - {"rotary"})
"""Rotary embedding is linear, so its gradient has a derivative like any other."""


def leaves_of(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    return [numbers(*shape, dtype=dtype).requires_grad_() for shape in OPERATORS[name][1]]


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_in_float64_are_those_of_finite_differences(name):
    compute, _ = OPERATORS[name]
    assert torch.autograd.gradcheck(compute, leaves_of(name, torch.float64))


def total(found: Any) -> torch.Tensor:
    parts = found if isinstance(found, tuple) else (found,)
    return sum((one.square().sum() for one in parts), torch.zeros(()))


@pytest.mark.parametrize("name", FIRST_ALONE)
def test_a_second_derivative_is_refused_instead_of_counted_as_zero(name):
    leaves = leaves_of(name, torch.float32)

    def penalty():
        found = total(OPERATORS[name][0](*leaves))
        total(torch.autograd.grad(found, leaves, create_graph=True)).backward()

    with pytest.raises(InputError, match="has first derivatives alone"):
        penalty()


@pytest.mark.parametrize("name", OPERATORS)
def test_forward_mode_is_refused_instead_of_counted_as_zero(name):
    compute, _ = OPERATORS[name]
    leaves = tuple(one.detach() for one in leaves_of(name, torch.float32))
    with pytest.raises(InputError, match="no forward-mode derivative"):
        torch.func.jvp(compute, leaves, leaves)


@pytest.mark.parametrize("name", ["experts", "attention", "losses"])
def test_matmuls_take_autocast_s_dtype_whatever_they_are_given(name):
    compute, _ = OPERATORS[name]
    leaves = leaves_of(name, torch.float32)
    mixed = [leaves[0].detach().bfloat16(), *leaves[1:]]
    with torch.autocast("cpu", torch.bfloat16):
        found = compute(*mixed)
    first = found[0] if isinstance(found, tuple) else found
    assert first.dtype == (torch.float32 if name == "losses" else torch.bfloat16)
    total(found).backward()
    assert all(one.grad.dtype == torch.float32 for one in leaves[1:] if one.grad is not None)


def test_classes_that_are_masked_by_infinity_leave_the_loss_finite():
    x, weight = (one.requires_grad_() for one in (numbers(3, 4), numbers(5, 4)))
    bias = torch.tensor([0.0, 0.0, float("-inf"), 0.0, 0.0])
    loss = linear_cross_entropy(x, weight, TARGET, bias)
    wanted = torch.nn.functional.cross_entropy(x @ weight.T + bias, TARGET)
    torch.testing.assert_close(loss, wanted)
    for found, other in zip(*(torch.autograd.grad(one, [x, weight]) for one in (loss, wanted)),
                            strict=True):  # fmt: skip
        torch.testing.assert_close(found, other)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
def test_gates_of_any_size_have_finite_gradients(activation):
    gate = torch.tensor([-1e18, -1e15, -90.0, 0.0, 90.0, 1e15, 1e18], requires_grad=True)
    gated_product(gate, torch.ones_like(gate), activation).sum().backward()
    assert gate.grad.tolist() == [0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.0]


whole = torch.arange(3)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "integers": (lambda: residual_rms_norm(whole, None, 1e-5), "x of the norm is int64"),
    "one number": (lambda: residual_rms_norm(torch.ones(()), None, 1e-5), r"x is \(\)"),
    "no columns": (lambda: residual_rms_norm(torch.ones(2, 0), None, 1e-5), r"x is \(2, 0\)"),
    "gates of integers": (lambda: gated_product(whole, whole), "gate of gated_product is int64"),
    "attention of integers": (
        lambda: flash_attention(*[torch.ones(1, 1, 3, 4, dtype=torch.int64)] * 3),
        "queries of flash_attention is int64",
    ),
    "heads of nothing": (lambda: flash_attention(*[torch.ones(1, 1, 3, 0)] * 3), "queries, keys"),
    "a cap of 0": (lambda: flash_attention(*[torch.ones(1, 1, 3, 4)] * 3, softcap=0.0), "softcap"),
    "a cap below 0": (
        lambda: linear_cross_entropy(numbers(3, 4), numbers(5, 4), TARGET, softcap=-1.0),
        "a softcap of -1.0; give a number above 0",
    ),
    "three dimensions": (lambda: rotary(*[numbers(3, 7, 6)] * 2, *ANGLES), "B, H, T, D"),
    "a bias of one": (
        lambda: linear_cross_entropy(numbers(3, 4), numbers(5, 4), TARGET, torch.ones(1)),
        r"bias \(1,\)",
    ),
    "a short target": (
        lambda: linear_cross_entropy(numbers(3, 4), numbers(5, 4), TARGET.int()),
        "the target in int64",
    ),
    "two dtypes": (
        lambda: linear_cross_entropy(numbers(3, 4), numbers(5, 4).bfloat16(), TARGET),
        "in one dtype",
    ),
    "no classes": (
        lambda: linear_cross_entropy(numbers(3, 4), torch.ones(0, 4), TARGET),
        r"weight \(0, 4\)",
    ),
    "ends that fall": (
        lambda: grouped_matmul(numbers(3, 4), numbers(3, 4, 2), ENDS.flip(0)),
        "do not fall",
    ),
    "ends beyond": (lambda: grouped_matmul(numbers(2, 4), numbers(3, 4, 2), ENDS), r"of 2 rows"),
    "other devices": (
        lambda: residual_rms_norm(numbers(3, 4), torch.ones(4, device="meta"), 1e-5),
        "weight on meta",
    ),
    "a gradient of another shape": (
        lambda: muon_step([numbers(3, 4)], [numbers(4, 3)], [numbers(3, 4)], learning_rate=0.1),
        "give them alike",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_kernel_could_read_is_refused_in_one_line(name):
    call, words = REFUSED[name]
    with pytest.raises(InputError, match=words) as refusal:
        call()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"parameters": 2}, "twice"),
        ({"gradients": [None]}, "no gradient"),
        ({"parameters": [torch.ones(3, dtype=torch.int64)]}, "parameter of AdamW is int64"),
        ({"betas": (1.0, 0.9)}, "betas"),
        ({"gradient_scale": torch.ones(2)}, "one number"),
    ],
    ids=["twice", "none", "integers", "betas", "scales"],
)
def test_adamw_refuses_what_it_cannot_step(changed, words):
    lists: dict[str, Any] = {
        name: [torch.ones(3)] for name in ("parameters", "gradients", "means", "squares")
    }
    if changed.get("parameters") == 2:
        lists = {name: [*one, *one] for name, one in lists.items()}
        changed = {}
    given_: dict[str, Any] = {
        "learning_rate": 0.1, "betas": (0.9, 0.9), "eps": 1e-8, "weight_decay": 0.0, "step": 1,
    }  # fmt: skip
    with pytest.raises(InputError, match=words):
        adamw_step(**(lists | given_ | changed))


def test_matrices_without_elements_are_left_as_they_are():
    empty = torch.empty(3, 0)
    muon_step([empty], [empty.clone()], [empty.clone()], learning_rate=0.1)
    assert empty.shape == (3, 0)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(OPERATORS)),
    laid=st.lists(st.sampled_from(LAYOUTS), min_size=4, max_size=4),
)
def test_inputs_may_lie_in_memory_as_they_like(name, laid):
    compute, shapes = OPERATORS[name]
    leaves = [laid_out(numbers(*shape), how) for shape, how in zip(shapes, laid, strict=False)]
    found, wanted = compute(*leaves), compute(*(one.contiguous() for one in leaves))
    torch.testing.assert_close(found, wanted)


def laid_out(x: torch.Tensor, how: str) -> torch.Tensor:
    if how == "strided":
        return torch.stack([x, x * 0 + 9], -1)[..., 0]
    if how == "expanded":
        return x[:1].expand(x.shape)
    if how == "offset":
        return torch.cat([x.new_ones(1), x.reshape(-1)])[1:].view(x.shape)
    return x
