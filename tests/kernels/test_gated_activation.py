"""Gated activations against their two-step references."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ridgeline.kernels.gated_activation import (
    gelu_tanh_mul,
    gelu_tanh_mul_reference,
    silu_mul,
    silu_mul_reference,
)

PAIRS = ((silu_mul, silu_mul_reference), (gelu_tanh_mul, gelu_tanh_mul_reference))
Product = Callable[[Tensor, Tensor], Tensor]


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(PAIRS),
    st.integers(1, 1500),
    st.lists(st.integers(1, 5), max_size=2),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.integers(0, 2**31),
)
def test_it_is_the_reference(
    pair: tuple[Product, Product], size: int, rows: list[int], dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    gate = (torch.randn(*rows, size, generator=generator) * 4).to(dtype)
    up = torch.randn(*rows, size, generator=generator).to(dtype)
    found, expected = (product(gate, up) for product in pair)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=4 * torch.finfo(dtype).eps, atol=4e-6)


@pytest.mark.parametrize("pair", PAIRS)
def test_far_values_neither_overflow_nor_vanish(pair: tuple[Product, Product]) -> None:
    gate = torch.tensor([-1e4, -200.0, -90.0, -30.0, 0.0, 30.0, 200.0, 1e4])
    found, expected = (product(gate, torch.ones(8)) for product in pair)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("pair", PAIRS)
def test_halves_of_one_tensor_are_taken_where_they_lie(pair: tuple[Product, Product]) -> None:
    gate, up = torch.randn(3, 5, 64).chunk(2, -1)
    torch.testing.assert_close(pair[0](gate, up), pair[1](gate, up), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_long_row_is_the_same_with_any_number_of_threads(threads: int) -> None:
    gate, up = torch.randn(2, 20_000), torch.randn(2, 20_000)
    before = torch.get_num_threads()
    expected = silu_mul(gate, up)
    try:
        torch.set_num_threads(threads)
        assert torch.equal(silu_mul(gate, up), expected)
    finally:
        torch.set_num_threads(before)


def test_the_compiler_takes_it_into_its_graph() -> None:
    gate, up = torch.randn(2, 8), torch.randn(2, 8)
    expected = silu_mul(gate, up)
    assert torch.equal(
        torch.compile(silu_mul, fullgraph=True, backend="aot_eager")(gate, up), expected
    )
