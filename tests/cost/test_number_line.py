"""The numbers of each format, against PyTorch's own conversions and the kernels that round."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cost.number_line import FORMATS, RoundedNumber, number_line
from ridgeline.kernels.number_formats import fp4, fp8, integer, mx, nvfp4

FINITE = st.floats(-1e4, 1e4, width=32).filter(lambda value: value == 0 or abs(value) > 1e-3)
BLOCK = st.floats(2**-10, 2**10, width=32)


def of(name: str, value: float, block_largest: float = 6.0) -> RoundedNumber:
    return number_line(value, block_largest, formats=[name]).formats[0]


@given(FINITE)
def test_wide_formats_round_as_torch_does(value: float) -> None:
    for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        assert of(name, value).rounded == float(torch.tensor(value).to(dtype))


@given(st.floats(-1e6, 1e6, width=32))
def test_floats_of_eight_bits_round_and_saturate_as_the_kernels_do(value: float) -> None:
    for name, dtype in (("fp8-e4m3", fp8.E4M3), ("fp8-e5m2", fp8.E5M2)):
        assert of(name, value).rounded == float(fp8.cast(torch.tensor(value), dtype))


@given(st.floats(-100, 100, width=32), BLOCK)
def test_blocks_round_as_the_kernels_do(value: float, largest: float) -> None:
    x, most = torch.tensor(value), torch.tensor(largest)
    for name, element in (("mxfp4", "e2m1"), ("mxfp8", "e4m3")):
        scale = mx.exponents(most, element)
        assert of(name, value, largest).rounded == float(
            mx.decode(mx.encode(x, scale, element), scale)
        )


@given(st.integers(-20, 20), BLOCK)
def test_scaled_integers_and_nvfp4_have_the_kernels_numbers(place: int, largest: float) -> None:
    """A value well between the middles, where the last bit of a scale decides nothing."""
    most = torch.tensor(largest)
    for bits in (4, 8):
        scale = integer.symmetric_scale(-most, most, bits)
        value = float(scale) * (place + 0.25)
        levels = integer.encode(torch.tensor(value), scale, None, bits)
        expected = float(integer.decode(levels, scale, None))
        assert of(f"int{bits}", value, largest).rounded == pytest.approx(expected, rel=1e-5)
    whole = nvfp4.global_scale(most)
    value = largest / 6 * (place + 0.1) / 4
    codes = nvfp4.encode(torch.tensor(value), nvfp4.scales(most, whole), whole)
    expected = float(nvfp4.decode(codes, nvfp4.scales(most, whole), whole))
    assert of("nvfp4", value, largest).rounded == pytest.approx(expected, rel=1e-5)


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("name", FORMATS)
def test_the_window_holds_every_number_once_and_the_value_lies_between_neighbours(
    name: str,
) -> None:
    for value in (0.0, 0.3, -1.0, 2.5, 1e-5):
        found = number_line(value, 6.0, 0.7, [name])
        one = found.formats[0]
        assert list(one.values) == sorted(set(one.values))
        assert not one.values or len(one.values) == one.values_in_window
        for near in one.values:
            assert of(name, near).rounded == near
        if one.above is not None:
            assert one.below <= value <= one.above
            mean = one.share_up * one.above + (1 - one.share_up) * one.below
            assert mean == pytest.approx(value, abs=1e-12)


def test_fp4_has_its_sixteen_numbers_and_fp8_its_254() -> None:
    codes = of("mxfp4", 0.0, 6.0)
    every = number_line(0.0, 6.0, 10.0, ["mxfp4", "fp8-e4m3", "int4"]).formats
    assert list(every[0].values) == sorted({s * m for m in fp4.MAGNITUDES for s in (-1, 1)})
    assert codes.scale == 1.0
    assert len(number_line(0.0, 6.0, 500.0, ["fp8-e4m3"]).formats[0].values) == 2 * 126 + 1
    assert len(every[2].values) == 16


def test_beyond_the_range_wide_formats_become_infinity_and_narrow_ones_are_cut() -> None:
    assert of("fp16", 65519.0).rounded == 65504.0
    assert of("fp16", 65520.0).rounded is None
    assert float(torch.tensor(65520.0).to(torch.float16)) == math.inf
    assert of("fp8-e4m3", 1000.0).rounded == 448.0
    assert of("fp8-e4m3", 1000.0).overflows
