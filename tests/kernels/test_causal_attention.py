"""Causal attention of whole sequences against the same in float64."""

from __future__ import annotations

import pytest
import torch

from ridgeline.kernels.causal_attention import causal_attention, reference


@pytest.mark.parametrize(("heads", "shared", "length"), [(4, 4, 1), (4, 2, 33), (6, 1, 140)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_whole_sequences_is_the_reference(
    heads: int, shared: int, length: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    queries, keys, values = (
        torch.randn(3, length, count, 24).to(dtype).transpose(1, 2)
        for count in (heads, shared, shared)
    )
    found = causal_attention(queries, keys, values, 0.2)
    rounding = 2e-2 if dtype == torch.bfloat16 else 1e-5
    assert found.dtype == dtype
    torch.testing.assert_close(
        found, reference(queries, keys, values, 0.2), rtol=rounding, atol=rounding
    )
