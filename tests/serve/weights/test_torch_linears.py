"""Layers on torch's own operators compute what their weights say, as Ridgeline's do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ridgeline.kernels import linear_int4, linear_int8, linear_w8a8
from ridgeline.serve.weights.torch_linears import (
    TorchInt4Linear,
    TorchInt8Linear,
    TorchW8A8Linear,
)

SHAPE = (48, 128)
"""Outputs and inputs."""
TOLERANCE = {torch.bfloat16: 1e-2, torch.float32: 1e-5}
"""Of the largest output; bf16 is rounded twice."""

dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)


@pytest.fixture
def weight() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(SHAPE)


def check(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    worst = (found.double() - expected.double()).abs().max() / expected.double().abs().max()
    assert worst <= TOLERANCE[dtype]


@dtypes
@pytest.mark.parametrize("kind", ["int8", "groups", "zeros", "fp8"])
def test_eight_bits_are_multiplied_as_dequantised(
    kind: str, dtype: torch.dtype, weight: Tensor
) -> None:
    levels, scales = linear_int8.quantise(weight)
    zeros = None
    if kind == "fp8":
        levels, scales = linear_int8.quantise_fp8(weight)
    if kind == "groups":
        scales = scales * (1 + torch.rand(SHAPE[0], 4))
    if kind == "zeros":
        zeros = torch.randint(-8, 8, scales.shape, dtype=torch.int8)
    bias = torch.randn(SHAPE[0])
    x = torch.randn(2, 3, SHAPE[1]).to(dtype)
    layer = TorchInt8Linear(levels, scales, zeros, bias)
    check(layer(x), linear_int8.reference(x, levels, scales, zeros, bias), dtype)
    assert torch.equal(layer.dequantised(), linear_int8.dequantise(levels, scales, zeros))


@dtypes
@pytest.mark.parametrize("with_zeros", [False, True])
def test_four_bits_are_multiplied_as_dequantised(
    with_zeros: bool, dtype: torch.dtype, weight: Tensor
) -> None:
    levels, scales = linear_int4.quantise(weight, 32)
    # Whole powers of two, so that bf16 holds zero points times scales.
    scales = torch.exp2(scales.float().log2().round()).bfloat16()
    zeros = torch.randint(-8, 8, scales.shape, dtype=torch.int8) if with_zeros else None
    bias = torch.randn(SHAPE[0])
    x = torch.randn(2, 3, SHAPE[1]).to(dtype)
    layer = TorchInt4Linear(levels, scales, zeros, bias)
    check(layer(x), linear_int4.reference(x, levels, scales, zeros, bias), dtype)
    dequantised = linear_int8.dequantise(levels, scales, zeros)
    assert torch.allclose(layer.dequantised(), dequantised, rtol=1e-3)


@dtypes
@pytest.mark.parametrize("step", [None, 0.02], ids=["by-row", "fixed"])
def test_rounded_activations_are_rounded_alike(
    step: float | None, dtype: torch.dtype, weight: Tensor
) -> None:
    levels, scales = linear_int8.quantise(weight)
    bias = torch.randn(SHAPE[0])
    x = torch.randn(20, SHAPE[1]).to(dtype)
    layer = TorchW8A8Linear(levels, scales, bias, step)
    check(layer(x), linear_w8a8.reference(x, levels, scales, bias, step), dtype)


def test_one_row_and_float16_are_taken(weight: Tensor) -> None:
    levels, scales = linear_int8.quantise(weight)
    x = torch.randn(1, SHAPE[1]).half()
    for layer in (TorchInt8Linear(levels, scales), TorchW8A8Linear(levels, scales)):
        assert layer(x).dtype == torch.float16
        assert layer(x).shape == (1, SHAPE[0])


def test_groups_that_torch_does_not_pack_are_told_apart() -> None:
    levels = torch.zeros(48, 144, dtype=torch.int8)
    assert TorchInt4Linear.takes(levels[:, :128], torch.ones(48, 4))
    assert not TorchInt4Linear.takes(levels, torch.ones(48, 3))
    assert not TorchInt4Linear.takes(levels[:47, :128], torch.ones(47, 4))
