"""RMS norm against its reference, in the order of roundings of each kind of model."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.kernels.rms_norm import rms_norm, rms_norm_reference

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 700),
    st.lists(st.integers(1, 5), max_size=2),
    st.sampled_from(DTYPES),
    st.sampled_from([0.0, 1.0]),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_it_is_the_reference(
    size: int, rows: list[int], dtype: torch.dtype, offset: float, round_first: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*rows, size, generator=generator).to(dtype)
    weight = torch.randn(size, generator=generator).to(dtype)
    found = rms_norm(x, weight, 1e-5, offset=offset, round_first=round_first)
    expected = rms_norm_reference(x, weight, 1e-5, offset=offset, round_first=round_first)
    assert found.dtype == dtype
    assert found.shape == x.shape
    # Two roundings, each of which another order of the sum may tip.
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(found, expected, rtol=max(2e-6, 2 * step), atol=1e-7)


def test_float32_is_exact_to_the_order_of_a_sum() -> None:
    x, weight = torch.randn(64, 4096), torch.randn(4096)
    exact = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6) * weight
    error = (rms_norm(x, weight, 1e-6).double() - exact).abs() / exact.abs().clamp_min(1e-3)
    assert float(error.max()) < 1e-6


def test_rows_that_do_not_lie_side_by_side_are_taken_too() -> None:
    x, weight = torch.randn(3, 8, 5).transpose(1, 2), torch.randn(8)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5))


def test_no_rows_give_no_rows() -> None:
    assert rms_norm(torch.empty(0, 8), torch.ones(8), 1e-5).shape == (0, 8)


def test_a_weight_of_another_length_is_refused() -> None:
    with pytest.raises(RuntimeError, match="rms_norm: contiguous rows as long as the weight"):
        rms_norm(torch.randn(2, 8), torch.ones(4), 1e-5)


def test_the_compiler_takes_it_into_its_graph() -> None:
    x, weight = torch.randn(2, 8), torch.randn(8)
    rms_norm(x, weight, 1e-5)
    compiled = torch.compile(rms_norm, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, weight, 1e-5), rms_norm(x, weight, 1e-5))
