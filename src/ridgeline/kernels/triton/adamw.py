"""AdamW over many tensors on a GPU: what `kernels/adamw.py` calls.

Tensors are told to the kernel as a table of addresses, one small copy to the device; each program
finds by its number which tensor and which part of it is its own.
"""

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_BLOCKS_OF_A_PROGRAM = 4
_WARPS = 8
_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def step_kernel(
    table: tl.tensor,
    scale: tl.tensor,
    num_tensors: tl.tensor,
    decay: tl.tensor,
    rate: tl.tensor,
    inverse_root: tl.tensor,
    new_mean: tl.tensor,
    beta_2: tl.tensor,
    new_square: tl.tensor,
    eps: tl.tensor,
    PARAMETER: tl.constexpr,
    GRADIENT: tl.constexpr,
    MEAN: tl.constexpr,
    SQUARE: tl.constexpr,
    ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_TENSORS: tl.constexpr,
) -> None:
    """Step CHUNK elements of the tensor in whose share of the programs this one lies.

    The table has six rows: addresses of parameters, gradients, means and squares, numbers of
    elements, and the first program that is no longer the tensor's.
    """
    program = tl.program_id(0)
    tensors = tl.arange(0, BLOCK_TENSORS)
    known = tensors < num_tensors
    ends = tl.load(table + 5 * num_tensors + tensors, mask=known, other=2147483647)
    passed = ends <= program
    tensor = tl.sum(passed.to(tl.int32), 0)
    first = tl.max(tl.where(passed, ends, 0), 0)
    size = tl.load(table + 4 * num_tensors + tensor)
    parameters = tl.load(table + tensor).to(tl.pointer_type(PARAMETER))
    gradients = tl.load(table + num_tensors + tensor).to(tl.pointer_type(GRADIENT))
    means = tl.load(table + 2 * num_tensors + tensor).to(tl.pointer_type(MEAN))
    squares = tl.load(table + 3 * num_tensors + tensor).to(tl.pointer_type(SQUARE))
    if ALIGNED:
        parameters = tl.multiple_of(parameters, 16)
        gradients = tl.multiple_of(gradients, 16)
        means = tl.multiple_of(means, 16)
        squares = tl.multiple_of(squares, 16)
    start = (program - first) * CHUNK
    for block in range(0, CHUNK, BLOCK):
        places = start + block + tl.arange(0, BLOCK)
        inside = places < size
        p = tl.load(parameters + places, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(gradients + places, mask=inside, other=0.0).to(tl.float32)
        m = tl.load(means + places, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(squares + places, mask=inside, other=0.0).to(tl.float32)
        if scale is not None:
            g = g * tl.load(scale)
        m = m + new_mean * (g - m)
        v = beta_2 * v + new_square * g * g
        p = p * decay - rate * m / (tl.sqrt(v) * inverse_root + eps)
        tl.store(parameters + places, p.to(PARAMETER), mask=inside)
        tl.store(means + places, m.to(MEAN), mask=inside)
        tl.store(squares + places, v.to(SQUARE), mask=inside)


def step(
    tensors: list[tuple[Tensor, Tensor, Tensor, Tensor]],
    scale: Tensor | None,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    eps: float,
    weight_decay: float,
    number: int,
) -> None:
    """Change parameters, means and squares of tensors of one kind in place."""
    chunk = _BLOCK * _BLOCKS_OF_A_PROGRAM
    sizes = [parameter.numel() for parameter, *_ in tensors]
    ends, programs = [], 0
    for size in sizes:
        programs += triton.cdiv(size, chunk)
        ends.append(programs)
    columns = list(zip(*tensors, strict=True))
    addresses = [[one.data_ptr() for one in column] for column in columns]
    aligned = all(address % 16 == 0 for column in addresses for address in column)
    table = torch.tensor([*addresses, sizes, ends], dtype=torch.int64)
    device = tensors[0][0].device
    if device.type == "cuda":
        table = table.pin_memory().to(device, non_blocking=True)
    step_kernel[(programs,)](
        table,
        scale,
        len(tensors),
        1.0 - learning_rate * weight_decay,
        learning_rate / (1.0 - beta_1**number),
        (1.0 - beta_2**number) ** -0.5,
        1.0 - beta_1,
        float(beta_2),
        1.0 - beta_2,
        float(eps),
        **{
            name: _TYPES[column[0].dtype]
            for name, column in zip(
                ("PARAMETER", "GRADIENT", "MEAN", "SQUARE"), columns, strict=True
            )
        },
        ALIGNED=aligned,
        CHUNK=chunk,
        BLOCK=_BLOCK,
        BLOCK_TENSORS=triton.next_power_of_2(len(tensors)),
        num_warps=_WARPS,
        enable_fp_fusion=True,
    )
