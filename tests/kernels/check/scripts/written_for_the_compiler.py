"""What the compiler takes and Python does otherwise: `and` of masks, a list as grid, libdevice,
numbers that are arguments, values of constants, the configuration that an autotuner took."""

import torch
import triton
import triton.language as tl


@triton.jit
def zero_of(dtype: tl.constexpr, rows: tl.constexpr):
    return tl.zeros((rows.value, 1), dtype.value)


@triton.jit
def row_means(x, out, rows, columns, EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = row < rows and column < columns
    outside = not inside
    found = tl.load(x + row * columns + column, mask=inside, other=0.0)
    found = tl.where(outside or (EVEN and column % 2 == 1), 0.0, found)
    squares = tl.extra.cuda.libdevice.pow(found, 2.0)
    total = zero_of(x.dtype.element_ty, ROWS) + tl.sum(squares, 1)[:, None]
    tl.store(out + row, total / columns, mask=row < rows)


@triton.autotune([triton.Config({"BLOCK": size}) for size in (64, 128)], key=["size"])
@triton.jit
def partial_sums(x, out, size, factor, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(x + place, mask=place < size, other=0.0) * factor.to(tl.float32)
    tl.store(out + tl.program_id(0), tl.sum(found.to(tl.float32)))


def scaled_sum(x, factor):
    partial = torch.zeros(triton.cdiv(len(x), 64))
    partial_sums[lambda meta: (triton.cdiv(len(x), meta["BLOCK"]),)](x, partial, len(x), factor)
    return partial[: triton.cdiv(len(x), partial_sums.best_config.kwargs["BLOCK"])].sum()


def example():
    x = torch.randn(13, 100)
    every, even = torch.empty(13), torch.empty(13)
    row_means[[4]](x, every, 13, 100, EVEN=False, ROWS=4, COLUMNS=128)
    row_means[lambda _: [4]](x, even, 13, 100, EVEN=True, ROWS=4, COLUMNS=128)
    squares = x.double() ** 2
    narrow = torch.randn(200).bfloat16()  # times a float32 number, which is not rounded between
    scaled = scaled_sum(narrow, 1 / 3), narrow.double().sum() / 3
    return [scaled, (every, squares.sum(1) / 100), (even, squares[:, ::2].sum(1) / 100)]
