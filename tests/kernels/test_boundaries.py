"""Every C++ kernel where a vector, a panel or a tile ends: no row, one, one less, one more.

Inputs begin one element behind where their memory does, so nothing is aligned, and end where it
ends: what is read or written beside them is a finding of the sanitizers, under which
`test_other_builds.py` runs these tests again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.kernels.test_paged_attention import QUANTISED, TOLERANCE, case
from torch import Tensor

from ridgeline.kernels import (
    column_products,
    column_walk,
    linear,
    linear_int4,
    linear_int8,
    linear_w8a8,
    range_search,
)
from ridgeline.kernels.gated_activation import (
    gelu_tanh_mul,
    gelu_tanh_mul_reference,
    silu_mul,
    silu_mul_reference,
)
from ridgeline.kernels.rms_norm import rms_norm, rms_norm_reference
from ridgeline.records.scheme import NumberFormat

SIZES = (1, 2, 15, 16, 17, 31, 33, 63, 65, 127, 129)
ROWS = (0, 1, 2, 11, 12, 13, 25)
OUTPUTS = (1, 31, 32, 33, 65)
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
Linear = Callable[[Tensor, int, bool], tuple[Tensor, Tensor]]


def unaligned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers that begin one element late and fill their memory to its end."""
    count = torch.Size(shape).numel()
    return torch.randn(count + 1).to(dtype)[1:].view(shape)


def near(found: Tensor, expected: Tensor, relative: float) -> None:
    assert found.shape == expected.shape
    error = (found.double() - expected.double()).norm()
    assert error <= relative * expected.double().norm() + 1e-30


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def dense(x: Tensor, outputs: int, portable: bool) -> tuple[Tensor, Tensor]:
    weight, bias = unaligned(outputs, x.shape[1], dtype=x.dtype), unaligned(outputs)
    panels = linear.pack(weight)
    found = torch.ops.ridgeline.linear_dense(x, panels, bias, outputs, portable)
    return found, linear.linear_reference(x, weight, bias)


def halves(x: Tensor, outputs: int, portable: bool) -> tuple[Tensor, Tensor]:
    weight = unaligned(outputs, x.shape[1], dtype=torch.float16)
    found = torch.ops.ridgeline.linear_dense(
        x.float(), linear.pack(weight), None, outputs, portable
    )
    return found, linear.linear_reference(x.float(), weight, None)


def eight_bits(x: Tensor, outputs: int, portable: bool) -> tuple[Tensor, Tensor]:
    levels, scales = linear_int8.quantise(unaligned(outputs, x.shape[1]))
    zeros = torch.randint(-9, 9, scales.shape, dtype=torch.int8)
    packed = [linear_int8.pack_groups(one) for one in (scales, zeros)]
    panels = linear_int8.pack(levels)
    found = torch.ops.ridgeline.linear_int8(x, panels, *packed, None, outputs, portable)
    return found, linear_int8.reference(x, levels, scales, zeros, None)


def floats_of_eight_bits(x: Tensor, outputs: int, portable: bool) -> tuple[Tensor, Tensor]:
    levels, scales = linear_int8.quantise_fp8(unaligned(outputs, x.shape[1]))
    bias, packed = unaligned(outputs), linear_int8.pack_groups(scales)
    panels = linear_int8.pack(levels)
    found = torch.ops.ridgeline.linear_int8(x, panels, packed, None, bias, outputs, portable)
    return found, linear_int8.reference(x, levels, scales, None, bias)


def four_bits(x: Tensor, outputs: int, portable: bool) -> tuple[Tensor, Tensor]:
    group = 32
    x = x.repeat(1, group)  # a depth that groups divide
    levels, scales = linear_int4.quantise(unaligned(outputs, x.shape[1]), group)
    panels, packed = linear_int4.pack(levels), linear_int8.pack_groups(scales)
    bias = unaligned(outputs)
    found = torch.ops.ridgeline.linear_int4(x, panels, packed, None, bias, outputs, portable)
    return found, linear_int4.reference(x, levels, scales, None, bias)


def rounded_activations(x: Tensor, outputs: int, portable: bool) -> tuple[Tensor, Tensor]:
    levels, scales = linear_int8.quantise(unaligned(outputs, x.shape[1]))
    bias, packed = unaligned(outputs), linear_w8a8.pack(levels, scales)
    found = torch.ops.ridgeline.linear_w8a8(x, *packed, bias, outputs, None, portable)
    return found, linear_w8a8.reference(x, levels, scales, bias)


LINEAR: tuple[Linear, ...] = (
    dense, halves, eight_bits, floats_of_eight_bits, four_bits, rounded_activations
)  # fmt: skip


@pytest.mark.parametrize("portable", [False, True], ids=["fast", "portable"])
@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
@pytest.mark.parametrize("layer", LINEAR, ids=lambda one: one.__name__)
def test_linear_layers_end_with_their_rows_depth_and_outputs(
    layer: Linear, dtype: torch.dtype, portable: bool
) -> None:
    for at, depth in enumerate(SIZES):
        for rows in ROWS:
            x = unaligned(rows, depth, dtype=dtype)
            found, expected = layer(x, OUTPUTS[(at + rows) % len(OUTPUTS)], portable)
            near(found, expected, 1e-5 if found.dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_and_gates_end_with_their_rows(dtype: torch.dtype) -> None:
    step = 4 * torch.finfo(dtype).eps
    for size in SIZES:
        for rows in ROWS:
            x, weight = unaligned(rows, size, dtype=dtype), unaligned(size, dtype=dtype)
            near(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5), step)
            gate, up = unaligned(rows, 2 * size, dtype=dtype).chunk(2, -1)
            near(silu_mul(gate, up), silu_mul_reference(gate, up), step)
            near(gelu_tanh_mul(gate, up), gelu_tanh_mul_reference(gate, up), step)


@pytest.mark.parametrize("columns", SIZES)
def test_sums_of_columns_end_with_rows_and_columns(columns: int) -> None:
    for rows in (*ROWS, 513):
        x, before = unaligned(rows, columns, dtype=torch.bfloat16), unaligned(columns, columns)
        found, rounded, expected = before.clone(), before.clone(), before.clone()
        column_products.add_column_products(found, x)
        column_products.add_rounded_products(rounded, x)
        column_products.reference(expected, x)
        near(found.triu(), expected.triu(), 1e-5)
        near(rounded.triu(), expected.triu(), 3e-2)


@pytest.mark.parametrize("columns", SIZES)
def test_roundings_of_columns_end_with_rows_and_columns(columns: int) -> None:
    for rows in ROWS[1:]:
        for bits in (2, 8):
            found = unaligned(columns, rows)
            expected = found.clone()
            factor = (unaligned(columns, columns) * 0.01 + torch.eye(columns)).triu()
            groups, scales = torch.arange(columns) % 3, torch.rand(3, rows) + 0.1
            for walk, rest in (
                (column_walk.walk_columns, found),
                (column_walk.reference, expected),
            ):
                walk(rest, factor, scales, None, groups, None, bits)
            assert float(((found - expected).abs() < 1e-5).float().mean()) > 0.8
            numbers = unaligned(rows, columns)
            form = NumberFormat(
                kind="int", bits=bits, symmetric=bits == 2, share="group", group=columns
            )
            ranges = [
                search(numbers, None, form, [1.0, 0.9])
                for search in (range_search.search_ranges, range_search.reference)
            ]
            for one, other in zip(*ranges, strict=True):
                assert float(((one - other).abs() <= 1e-5 * other.abs()).float().mean()) > 0.9


@pytest.mark.parametrize("stored", [None, *QUANTISED], ids=str)
@pytest.mark.parametrize("size", [8, 24, 40, 64, 72, 136])
def test_attention_ends_with_heads_blocks_and_contexts(
    size: int, stored: torch.dtype | None
) -> None:
    for at, context in enumerate((1, 2, 15, 16, 17, 33, 129)):
        for block, group in ((1, 3), (16, 1), (32, 7)):
            dtype = FLOATS[at % 3]
            found = case(
                [(1, context), (context, context), (min(3, context), context)],
                kv_heads=1 + at % 2, group=group, size=size, block=block, dtype=dtype,
                kv_dtype=stored, fixed=stored is not None and at % 2 == 0,
            )  # fmt: skip
            found.queries = unaligned(*found.queries.shape, dtype=dtype)
            options: dict[str, object] = {"window": 16, "softcap": 20.0} if at % 2 else {}
            near(found.attend(**options), found.reference(**options), 2 * TOLERANCE[dtype])
