"""fp8 and fp4 round as specified: checked against every code and every bfloat16 number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ridgeline.kernels.number_formats import fp4, fp8


def value_of(code: int, exponent_bits: int, mantissa_bits: int) -> float:
    """OFP8 1.0 and MX 1.0, written from the tables: sign, exponent, mantissa."""
    bias = 2 ** (exponent_bits - 1) - 1
    mantissa = code % 2**mantissa_bits
    exponent = code >> mantissa_bits & 2**exponent_bits - 1
    sign = -1.0 if code >> exponent_bits + mantissa_bits else 1.0
    if (exponent_bits, mantissa_bits) == (4, 3) and (exponent, mantissa) == (15, 7):
        return float("nan")
    if (exponent_bits, mantissa_bits) == (5, 2) and exponent == 31:
        return float("nan") if mantissa else sign * float("inf")
    if exponent == 0:
        return sign * mantissa / 2**mantissa_bits * 2.0 ** (1 - bias)
    return sign * (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)


def nearest_code(x: Tensor, exponent_bits: int, mantissa_bits: int) -> Tensor:
    """By search among all finite magnitudes, a tie to the even code; saturated; sign on top."""
    codes = range(2 ** (exponent_bits + mantissa_bits))
    values = [value_of(code, exponent_bits, mantissa_bits) for code in codes]
    finite = torch.tensor([v for v in values if v < float("inf")], dtype=torch.float64)
    magnitude = x.double().abs().clamp_max(float(finite[-1]))
    above = torch.searchsorted(finite, magnitude).clamp_max(len(finite) - 1)
    below = (above - 1).clamp_min(0)
    down, up = magnitude - finite[below], finite[above] - magnitude
    picked = torch.where((down < up) | ((down == up) & (below % 2 == 0)), below, above)
    return picked + (torch.signbit(x).long() << exponent_bits + mantissa_bits)


def every_bfloat16() -> Tensor:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    numbers = bits.view(torch.bfloat16).float()
    return numbers[~numbers.isnan()]


def beside_every_middle(exponent_bits: int, mantissa_bits: int) -> Tensor:
    """The middles between neighbours, exact in float32, and the float32 numbers next to them."""
    codes = range(2 ** (exponent_bits + mantissa_bits))
    values = torch.tensor([value_of(code, exponent_bits, mantissa_bits) for code in codes])
    values = values[values.isfinite()]
    middles = (values[1:] + values[:-1]) / 2
    around = [middles, *(torch.nextafter(middles, torch.tensor(end)) for end in (0.0, 1e9))]
    return torch.cat([*around, *(-numbers for numbers in around)])


FP8 = {fp8.E4M3: (4, 3), fp8.E5M2: (5, 2)}


@pytest.mark.parametrize("dtype", FP8)
def test_every_fp8_code_has_the_specified_value(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    expected = torch.tensor([value_of(code, *FP8[dtype]) for code in range(256)])
    assert torch.equal(
        fp8.decode(codes, torch.ones(())).nan_to_num(nan=1e9), expected.nan_to_num(1e9)
    )


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_rounds_every_number_to_the_nearest_even_and_saturates(dtype: torch.dtype) -> None:
    for numbers in (every_bfloat16(), beside_every_middle(*FP8[dtype])):
        found = fp8.cast(numbers, dtype).view(torch.uint8).long()
        assert torch.equal(found, nearest_code(numbers, *FP8[dtype]))


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_keeps_nan_and_makes_infinity_the_largest(dtype: torch.dtype) -> None:
    cast = fp8.cast(torch.tensor([torch.nan, torch.inf, -torch.inf]), dtype).float()
    assert cast[0].isnan()
    assert cast[1:].tolist() == [fp8.largest(dtype), -fp8.largest(dtype)]


def test_every_fp4_code_has_the_specified_value() -> None:
    expected = torch.tensor([value_of(code, 2, 1) for code in range(16)])
    found = fp4.value(torch.arange(16, dtype=torch.uint8))
    assert torch.equal(found, expected)
    assert torch.equal(found.signbit(), expected.signbit())


def test_fp4_rounds_every_number_to_the_nearest_even_and_saturates() -> None:
    for numbers in (every_bfloat16(), beside_every_middle(2, 1)):
        assert torch.equal(fp4.cast(numbers).long(), nearest_code(numbers, 2, 1))


def test_fp4_codes_survive_packing() -> None:
    codes = torch.arange(256, dtype=torch.int32).reshape(16, 16).remainder(16).to(torch.uint8)
    assert torch.equal(fp4.unpack(fp4.pack(codes)), codes)
    assert fp4.pack(torch.tensor([[1, 15]], dtype=torch.uint8)).tolist() == [[0xF1]]
