"""Weight-only products in Triton give what the float64 reference over the same weights gives."""

from __future__ import annotations

import pytest
import torch

from ridgeline.errors import InputError
from ridgeline.kernels import linear_int4 as int4_reference
from ridgeline.kernels import linear_int8 as int8_reference
from ridgeline.kernels.triton import linear_int4, linear_int8

TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
ROWS = [1, 2, 18]


def check(
    ours: object,
    reference: object,
    quantised: torch.Tensor,
    num_groups: int,
    device: torch.device,
    *,
    rows: int,
    dtype: torch.dtype = torch.float32,
    zero_range: tuple[int, int] | None = None,
    bias: bool = False,
) -> None:
    draw = torch.Generator().manual_seed(2)
    outputs, depth = quantised.shape
    x = torch.randn(rows, depth, generator=draw).to(dtype).to(device)
    scales = (torch.rand(outputs, num_groups, generator=draw) + 0.5).to(device) / depth**0.5
    scales /= quantised.float().abs().mean().clamp_min(1.0)
    zeros = None
    if zero_range is not None:
        zeros = torch.randint(*zero_range, (outputs, num_groups), generator=draw).to(torch.int8)
        zeros = zeros.to(device)
    extra = torch.randn(outputs, generator=draw).to(device) if bias else None
    quantised = quantised.to(device)
    found = ours.linear(
        x,
        ours.pack(quantised),
        ours.pack_groups(scales),
        None if zeros is None else ours.pack_groups(zeros),
        extra,
    )
    wanted = reference.reference(x, quantised, scales, zeros, extra)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def eight_bits(outputs: int, depth: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(-127, 128, (outputs, depth), generator=draw).to(torch.int8)


def four_bits(outputs: int, depth: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(-8, 8, (outputs, depth), generator=draw).to(torch.int8)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_int8_per_output(device: torch.device, rows: int, dtype: torch.dtype) -> None:
    check(linear_int8, int8_reference, eight_bits(37, 160), 1, device, rows=rows, dtype=dtype)


@pytest.mark.parametrize("rows", ROWS)
def test_int8_of_a_depth_that_fits_no_step(device: torch.device, rows: int) -> None:
    check(linear_int8, int8_reference, eight_bits(5, 75), 1, device, rows=rows, bias=True)


@pytest.mark.parametrize("rows", ROWS)
def test_int8_with_zero_points_in_groups(device: torch.device, rows: int) -> None:
    weight = eight_bits(9, 192)
    options = {"rows": rows, "zero_range": (-128, 128), "bias": True}
    check(linear_int8, int8_reference, weight, 3, device, **options)


@pytest.mark.parametrize("rows", ROWS)
def test_float8_weights(device: torch.device, rows: int) -> None:
    weight = (eight_bits(9, 96).float() * 3).to(torch.float8_e4m3fn)
    check(linear_int8, int8_reference, weight, 1, device, rows=rows)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_int4_in_groups(device: torch.device, rows: int, dtype: torch.dtype) -> None:
    check(linear_int4, int4_reference, four_bits(37, 128), 4, device, rows=rows, dtype=dtype)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("depth", "groups"), [(256, 2), (224, 1), (160, 5)])
def test_int4_with_zero_points(device: torch.device, rows: int, depth: int, groups: int) -> None:
    options = {"rows": rows, "zero_range": (-8, 8), "bias": True}
    check(linear_int4, int4_reference, four_bits(6, depth), groups, device, **options)


def test_a_deep_product_is_split_and_added_up(device: torch.device) -> None:
    check(linear_int8, int8_reference, eight_bits(5, 1100), 1, device, rows=3, bias=True)
    check(linear_int4, int4_reference, four_bits(5, 1152), 9, device, rows=3, bias=True)


def test_no_rows_give_no_rows(device: torch.device) -> None:
    packed = linear_int8.pack(eight_bits(5, 64).to(device))
    out = linear_int8.linear(
        torch.ones(0, 64, device=device), packed, torch.ones(1, 5, device=device), None, None
    )
    assert out.shape == (0, 5)


def test_leading_dimensions_are_kept(device: torch.device) -> None:
    packed = linear_int8.pack(eight_bits(5, 64).to(device))
    x = torch.ones(2, 3, 64, device=device)
    out = linear_int8.linear(x, packed, torch.ones(1, 5, device=device), None, None)
    assert out.shape == (2, 3, 5)


def test_packed_int4_comes_back() -> None:
    weight = four_bits(7, 96)
    assert torch.equal(linear_int4.unpack(linear_int4.pack(weight)), weight)


def test_groups_that_a_gpu_cannot_read_are_refused() -> None:
    with pytest.raises(InputError, match="multiple of 32"):
        linear_int4.pack(four_bits(4, 48))
    packed = linear_int4.pack(four_bits(4, 96))
    with pytest.raises(InputError, match="groups of 48"):
        linear_int4.linear(torch.ones(1, 96), packed, torch.ones(2, 4), None, None)
