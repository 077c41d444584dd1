"""Linear layers in panels: every format against float64, on every path, at odd shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ridgeline.kernels import linear, linear_int4, linear_int8

SHAPES = [(64, 64), (1, 32), (33, 96), (100, 352), (256, 768)]
"""Outputs and depth."""
ROWS = [1, 2, 3, 4, 5, 7, 12, 13, 24, 25, 200]
"""On both sides of every border between ways: two panels at once, one block, several, chunks."""
TOLERANCE = {torch.bfloat16: 5e-3, torch.float32: 2e-6}
"""Of the largest output: half a step of bf16, or float32 sums of up to 768 products."""

Multiply = Callable[[Tensor, bool], Tensor]
"""(x, portable) → out"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads take panels, whole; `test_threads_change_nothing` has two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(kind: str, outputs: int, depth: int) -> tuple[Multiply, Tensor, Tensor]:
    """How to multiply, the weight in float64, the bias."""
    torch.manual_seed(outputs + depth)
    ops: Any = torch.ops.ridgeline
    weight, bias = torch.randn(outputs, depth) / depth**0.5, torch.randn(outputs)
    if kind in {"bf16", "fp32", "fp16"}:
        dtypes = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}
        stored = weight.to(dtypes[kind])
        panels = linear.pack(stored)
        return lambda x, p: ops.linear_dense(x, panels, bias, outputs, p), stored.double(), bias
    if kind.startswith("int4"):
        levels, scales = linear_int4.quantise(weight, 32)
        op, panels = ops.linear_int4, linear_int4.pack(levels)
    elif kind == "fp8":
        levels, scales = linear_int8.quantise_fp8(weight)
        op, panels = ops.linear_int8, linear_int8.pack(levels)
    else:
        levels, scales = linear_int8.quantise(weight)
        levels[0, :2] = torch.tensor([-128, 127])
        if "groups" in kind:
            scales = scales * (1 + torch.rand(outputs, depth // 32))
        op, panels = ops.linear_int8, linear_int8.pack(levels)
    zeros = torch.randint(-8, 8, scales.shape, dtype=torch.int8) if "zeros" in kind else None
    packed = linear_int8.pack_groups(scales)
    packed_zeros = None if zeros is None else linear_int8.pack_groups(zeros)
    dequantised = linear_int8.dequantise(levels, scales, zeros).double()
    return lambda x, p: op(x, panels, packed, packed_zeros, bias, outputs, p), dequantised, bias


WIDE = ["fp32", "fp16"]
NARROW = ["bf16", "int8", "int8-groups-zeros", "fp8", "int4", "int4-zeros"]


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("portable", [False, True], ids=["fast", "portable"])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, torch.float32) for kind in WIDE + NARROW] + [(kind, torch.bfloat16) for kind in NARROW],
)
def test_every_path_is_the_product_with_the_dequantised_weight(
    kind: str, dtype: torch.dtype, portable: bool
) -> None:
    for outputs, depth in SHAPES:
        multiply, weight, bias = made(kind, outputs, depth)
        for rows in ROWS:
            x = torch.randn(rows, depth).to(dtype)
            expected = x.double() @ weight.T + bias.double()
            found = multiply(x, portable).double()
            worst = (found - expected).abs().max() / expected.abs().max()
            assert worst <= TOLERANCE[dtype], (outputs, depth, rows)


@pytest.mark.parametrize("kind", ["bf16", "fp32", "int8", "int4-zeros"])
def test_a_row_is_the_same_bits_alone_and_in_any_batch(kind: str) -> None:
    multiply, _, _ = made(kind, 100, 352)
    x = torch.randn(200, 352).to(torch.float32 if kind == "fp32" else torch.bfloat16)
    whole = multiply(x, False)
    for rows in ROWS:
        assert torch.equal(multiply(x[:rows], False), whole[:rows]), rows


def test_threads_change_nothing() -> None:
    multiply, _, _ = made("int4", 256, 768)
    x = torch.randn(30, 768).bfloat16()
    alone = multiply(x, False)
    torch.set_num_threads(2)
    assert torch.equal(multiply(x, False), alone)


@pytest.mark.parametrize("kind", [*WIDE, *NARROW])
def test_no_rows_give_no_rows(kind: str) -> None:
    multiply, _, _ = made(kind, 64, 64)
    assert multiply(torch.empty(2, 0, 64), False).shape == (2, 0, 64)


def test_rows_may_have_any_shape_and_strides() -> None:
    multiply, weight, bias = made("fp32", 33, 96)
    x = torch.randn(96, 3, 2).permute(1, 2, 0)
    expected = torch.nn.functional.linear(x.double(), weight, bias.double())
    assert torch.allclose(multiply(x, False).double(), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(33, 7), (64, 64)])
def test_a_dense_weight_unpacks_bit_by_bit(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape).to(dtype)
    assert torch.equal(linear.unpack(linear.pack(weight), *shape), weight)


def test_an_odd_depth_is_filled_up() -> None:
    weight, x = torch.randn(5, 7).bfloat16(), torch.randn(3, 7).bfloat16()
    found = linear.linear(x, linear.pack(weight), None, 5)
    assert torch.allclose(found.float(), x.float() @ weight.float().T, atol=2e-2)


def test_an_x_of_another_depth_is_refused() -> None:
    panels = linear.pack(torch.randn(64, 64))
    with pytest.raises(RuntimeError, match="features"):
        linear.linear(torch.randn(1, 65), panels, None, 64)


@pytest.mark.parametrize("kind", ["bf16", "int8", "int4"])
def test_the_compiler_takes_the_operator(kind: str) -> None:
    multiply, _, _ = made(kind, 64, 64)
    x = torch.randn(3, 64).bfloat16()
    compiled = torch.compile(lambda x: multiply(x * 2, False), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), multiply(x * 2, False))
