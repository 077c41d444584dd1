"""MX and NVFP4 blocks: the specification, and other implementations where they follow it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.utils import calculate_qparams
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ridgeline.kernels.number_formats import fp4, fp8, mx, nvfp4

ELEMENTS = {"e2m1": 2, "e4m3": 8, "e5m2": 15}


def heavy_tailed(rows: int, columns: int, seed: int = 0) -> Tensor:
    """Numbers of very different sizes, block by block."""
    made = torch.Generator().manual_seed(seed)
    sizes = torch.exp(3 * torch.randn(rows, columns // 16, 1, generator=made))
    return (sizes * torch.randn(rows, columns // 16, 16, generator=made)).flatten(1)


def test_every_e8m0_code_has_the_specified_value() -> None:
    found = mx.powers_of_two(torch.arange(256, dtype=torch.int32).to(torch.uint8))
    assert found[255].isnan()
    assert found[:255].double().tolist() == [2.0 ** (code - 127) for code in range(255)]


@pytest.mark.parametrize("element", ELEMENTS)
def test_mx_scales_of_every_power_are_those_of_section_6_3(element: str) -> None:
    for power in range(-149, 128):
        for mantissa in (1.0, 1.25, 1.5, 1.75, 1.9999999):
            largest = torch.tensor(mantissa * 2.0**power)
            if largest == 0 or largest.isinf():
                continue
            exponent = math.floor(math.log2(largest.item())) - ELEMENTS[element]
            # Just below a power, log2 in float64 rounds up.
            exponent -= largest.item() < 2.0 ** math.floor(math.log2(largest.item()))
            assert int(mx.exponents(largest, element)) == min(max(exponent + 127, 0), 254)


@given(
    values=st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=32, max_size=32
    ),
    element=st.sampled_from(list(ELEMENTS)),
)
@settings(max_examples=60, deadline=None)
def test_an_mx_block_is_divided_rounded_and_saturated(values: list[float], element: str) -> None:
    block = torch.tensor([values])
    scale = mx.exponents(block.abs().amax(1, keepdim=True), element)
    quotients = block.double() / 2.0 ** (scale.double() - 127)
    cast: dict[str, Any] = {
        "e2m1": fp4.cast,
        "e4m3": lambda x: fp8.cast(x, fp8.E4M3).view(torch.uint8),
        "e5m2": lambda x: fp8.cast(x, fp8.E5M2).view(torch.uint8),
    }
    expected = cast[element](quotients.clamp(-1e30, 1e30).float())
    assert torch.equal(mx.encode(block, scale, element).view(torch.uint8), expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("element", "theirs"), [("e2m1", torch.float4_e2m1fn_x2), ("e4m3", torch.float8_e4m3fn)]
)
def test_mx_equals_torchao_with_its_floor_scales(element: str, theirs: torch.dtype) -> None:
    mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    x = heavy_tailed(64, 256)
    x[3], x[4, :32] = 0, 2.0**-149
    scales, elements = mx_tensor.to_mx(x, theirs, mx.BLOCK)
    blocks = x.unflatten(1, (-1, mx.BLOCK))
    ours = mx.exponents(blocks.abs().amax(-1, keepdim=True), element)
    codes = mx.encode(blocks, ours, element).flatten(1)
    assert torch.equal(ours.squeeze(-1), scales.view(torch.uint8))
    packed = fp4.pack(codes) if element == "e2m1" else codes.view(torch.uint8)
    assert torch.equal(packed, elements.view(torch.uint8))


@pytest.mark.parametrize(("element", "bits"), [("e2m1", 4), ("e4m3", 8)])
def test_compressed_tensors_rounds_mx_scales_up_where_the_specification_does_not(
    element: str, bits: int
) -> None:
    args = QuantizationArgs(
        num_bits=bits, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8
    )
    largest = heavy_tailed(64, 256).abs().amax(1)
    theirs, _ = calculate_qparams(-largest, largest, args)
    rounded_up = mx.powers_of_two(mx.exponents(largest, element, round_up=True))
    specified = mx.powers_of_two(mx.exponents(largest, element))
    assert torch.equal(rounded_up, theirs)
    mantissas, _ = torch.frexp(largest)
    assert torch.equal(theirs / specified, torch.where(mantissas >= 0.875, 2.0, 1.0))
    assert (mantissas >= 0.875).any()


@pytest.mark.filterwarnings("ignore")
def test_nvfp4_equals_torchao() -> None:
    theirs = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    # Blocks of like sizes: of much smaller ones torchao cuts the scale at 2⁻⁶, which costs them.
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    factor = nvfp4.global_scale(x.abs().amax())
    scales, elements = theirs.nvfp4_quantize(x, nvfp4.BLOCK, 1 / factor[0])
    blocks = x.unflatten(1, (-1, nvfp4.BLOCK))
    ours = nvfp4.scales(blocks.abs().amax(-1, keepdim=True), factor)
    assert (ours.squeeze(-1).view(torch.uint8) != scales.view(torch.uint8)).float().mean() < 1e-3
    codes = fp4.pack(nvfp4.encode(blocks, ours, factor).flatten(1))
    assert (codes != elements).float().mean() < 2e-3, "they multiply by rounded reciprocals"


def test_nvfp4_equals_compressed_tensors() -> None:
    args = QuantizationArgs(
        num_bits=4,
        type="float",
        strategy="tensor_group",
        group_size=16,
        scale_dtype=torch.float8_e4m3fn,
    )
    largest = heavy_tailed(64, 256).abs().unflatten(1, (-1, 16)).amax(-1)
    factor = nvfp4.global_scale(largest.amax())
    theirs, _ = calculate_qparams(-largest, largest, args, global_scale=factor)
    ours = nvfp4.scales(largest, factor).float()
    vanished = (factor * largest / 6) < 2.0**-10
    assert torch.equal(ours[~vanished], theirs[~vanished])
    assert (theirs[vanished] == 0.125).all(), "theirs: the format's epsilon"
    assert (ours[vanished] == 2.0**-9).all(), "ours: its smallest number, 64 times finer"


def test_nvfp4_of_the_largest_number_is_nearly_exact() -> None:
    x = heavy_tailed(8, 64)
    factor = nvfp4.global_scale(x.abs().amax())
    blocks = x.unflatten(1, (-1, nvfp4.BLOCK))
    scales = nvfp4.scales(blocks.abs().amax(-1, keepdim=True), factor)
    found = nvfp4.decode(nvfp4.encode(blocks, scales, factor), scales, factor)
    assert scales.float().max() == 448
    assert abs(found.abs().max() / x.abs().max() - 1) < 1e-6
    assert float(nvfp4.global_scale(torch.zeros(()))) == 1
