"""Kernels and what lies oddly in memory, against the same laid out densely; odd sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.test_odd_arguments import LAYOUTS, laid_out
from tests.kernels.triton.accuracy import random
from tests.kernels.triton.conftest import INTERPRETED, filled_cache, packed_of

from ridgeline.kernels.attention_mask import AttentionMask, PackedSequences
from ridgeline.kernels.flash_attention import flash_attention, flash_attention_reference
from ridgeline.kernels.grouped_matmul import grouped_matmul
from ridgeline.kernels.linear_cross_entropy import linear_cross_entropy
from ridgeline.kernels.residual_norm import residual_layer_norm
from ridgeline.kernels.triton import linear_int8
from ridgeline.kernels.triton.paged_attention import paged_attention, write_cache


def made(device, *shapes):
    return [random(*shape, seed=at, dtype=torch.float32, device=device)
            for at, shape in enumerate(shapes)]  # fmt: skip


def results_of(compute, small, device, how):
    """Results and gradients with small tensors laid out in some way, and with dense ones."""
    odd = [laid_out(one, how).to(device) for one in small]
    return [compute(*one) for one in (odd, [tensor.contiguous() for tensor in odd])]


def norm(device):
    x, residual, weight, bias = made(device, (5, 12), (5, 12), (12,), (12,))

    def compute(weight, bias):
        leaves = [one.detach().requires_grad_() for one in (x, residual, weight, bias)]
        y, h = residual_layer_norm(leaves[0], leaves[2], leaves[3], 1e-5, residual=leaves[1])
        return torch.autograd.grad((y * h).sum(), leaves)

    return compute, [weight, bias]


def loss(device):
    x, weight = made(device, (7, 4), (9, 4))
    return (
        lambda target: linear_cross_entropy(x, weight, target, reduction="none"),
        [torch.arange(7)],
    )


def experts(device):
    x, weight = made(device, (9, 4), (3, 4, 5))
    return (lambda ends: grouped_matmul(x, weight, ends), [torch.tensor([9, 9, 9]).int()])


def sinks(device):
    q, k, v, taken = made(device, (1, 4, 5, 16), (1, 2, 5, 16), (1, 2, 5, 16), (4,))
    return (lambda taken: tuple(flash_attention(q, k, v, sinks=taken)), [taken])


def sequences(device):
    q, k, v = made(device, (20, 2, 16), (20, 1, 16), (20, 1, 16))

    def compute(starts):
        packed = PackedSequences(
            query_starts=starts, key_starts=starts, longest_queries=20, longest_keys=20
        )
        mask = AttentionMask(causal=True, sequences=packed)
        leaves = [one.detach().requires_grad_() for one in (q, k, v)]
        out, _ = flash_attention(*leaves, mask=mask)
        return out.detach(), *torch.autograd.grad(out.square().sum(), leaves)

    return compute, [torch.tensor([0, 3, 20]).int()]


def eight_bits(device):
    weight = torch.arange(-60, 60, dtype=torch.int8).view(3, 40).to(device)
    x, scales, bias = made(device, (2, 40), (1, 3), (3,))
    return (
        lambda scales, bias: linear_int8.linear(x, weight, scales, None, bias),
        [scales, bias],
    )


def pages(device):
    packed = packed_of([(1, 5), (1, 21)], 16, device, 5)
    cache = filled_cache((5, 2, 16, 16), torch.float32, None, device)
    queries, taken = made(device, (2, 4, 16), (4,))

    def compute(taken, starts, lengths, slots):
        given_ = replace(packed, query_starts=starts, context_lengths=lengths, slots=slots)
        write_cache(queries[:, :2], queries[:, 2:], cache, given_)
        return paged_attention(queries, cache, given_, scale=0.25, sinks=taken)

    return compute, [taken, packed.query_starts, packed.context_lengths, packed.slots]


OPERATORS = (norm, loss, experts, sinks, sequences, eight_bits, pages)


@pytest.mark.parametrize("how", LAYOUTS[1:])
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda one: one.__name__)
def test_small_tensors_are_read_where_they_lie(device, operator, how):
    if how == "expanded" and operator in (sequences, pages):
        how = "strided"  # starts that are all the same mean another batch
    compute, small = operator(device)
    odd, dense = results_of(compute, small, device, how)
    torch.testing.assert_close(odd, dense, rtol=0, atol=0)


def test_ends_beyond_the_rows_read_and_write_none_that_are_not_there(device):
    x, weight = made(device, (5, 4), (3, 4, 6))
    leaves = [one.requires_grad_() for one in (x, weight)]
    found = []
    for ends in ([2, 9, 400], [2, 5, 5]):
        y = grouped_matmul(*leaves, torch.tensor(ends, dtype=torch.int32, device=device))
        found.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_float64_goes_step_by_step_and_stays_float64(device):
    q, k, v = (one.double() for one in made(device, *[(1, 2, 5, 300)] * 3))
    out, logs = flash_attention(q, k, v)
    assert out.dtype == logs.dtype == torch.float64
    torch.testing.assert_close(out, flash_attention_reference(q, k, v).out, rtol=1e-13, atol=1e-13)


problems = st.fixed_dictionaries({
    "heads": st.sampled_from([(1, 1), (2, 2), (3, 1), (4, 2)]),
    "queries": st.integers(1, 20), "keys": st.integers(1, 20),
    "dim": st.sampled_from([1, 7, 16, 24, 40, 64, 96, 192, 256]),
    "mask": st.sampled_from([{}, {"causal": True}, {"causal": True, "window": 1}, {"window": 3}]),
    "softcap": st.sampled_from([None, 2.0, 30.0]), "scale": st.sampled_from([None, 0.01]),
    "seed": st.integers(0, 1000),
})  # fmt: skip


@pytest.mark.skipif(not INTERPRETED, reason="one device is enough")
@settings(max_examples=40, deadline=None)
@given(problem=problems)
def test_interpreter_attention_of_any_size_is_within_2e_6_of_float64(problem):
    check_attention(**problem)


def check_attention(
    heads: tuple[int, int],
    queries: int,
    keys: int,
    dim: int,
    mask: dict[str, Any],
    softcap: float | None,
    scale: float | None,
    seed: int,
) -> None:
    """Errors are shares of the gradient, or of its first term, P · dP, where that is larger.

    A query that sees one key has a weight of 1 whatever it is; its gradient is what is left of two
    terms that are the same. The gradient of out · exp(L - L₀), L₀ held, is the first of them.
    """
    wanted_by = torch.Generator().manual_seed(seed)

    def drawn(count: int, tokens: int) -> torch.Tensor:
        return torch.randn(1, count, tokens, dim, generator=wanted_by)

    inputs = [drawn(heads[0], queries), drawn(heads[1], keys), drawn(heads[1], keys)]
    upper = drawn(heads[0], queries), drawn(heads[0], queries)[..., 0]
    given_: dict[str, Any] = {
        "mask": AttentionMask(**mask), "softcap": softcap, "scale": scale,
    }  # fmt: skip
    results = []
    ways = (flash_attention, torch.float32), (flash_attention_reference, torch.float64)
    for compute, dtype in ways:
        leaves = [one.to(dtype).requires_grad_() for one in inputs]
        out, logs = compute(*leaves, **given_)
        logs = torch.where(torch.isfinite(logs), logs, 0.0)
        along = (out * upper[0]).sum() + (logs * upper[1]).sum()
        results.append([out, logs, *torch.autograd.grad(along, leaves, retain_graph=True)])
    term = (out * torch.exp(logs - logs.detach())[..., None] * upper[0]).sum()
    terms = torch.autograd.grad(term, leaves)
    sizes = [0.0, queries**0.5, *(float(one.norm()) for one in terms)]
    for part, found, exact, size in zip("olqkv", *results, sizes, strict=True):
        away = float((found.detach().double() - exact.detach()).norm())
        assert away <= 2e-6 * max(size, float(exact.detach().norm())), (part, away, size)
