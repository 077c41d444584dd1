"""GPU kernels in Triton, behind the wrappers of `kernels/`.

`paged_attention.py` stores keys and values and attends over them, `linear_int8.py` and
`linear_int4.py` multiply with weights that stay small in memory. `residual_norm.py`,
`gated_product.py`, `rotary.py` and `linear_cross_entropy.py` are what training computes between
matmuls, both ways; `grouped_matmul.py` has the matmuls of experts, `adamw.py` the optimizer's step.
The Triton interpreter runs all of them on the CPU in tests (`TRITON_INTERPRET=1`), and tests
compile them for the architectures that they are meant for.

Nothing here waits for the device: whatever decides about a launch is known on the host, so that
CUDA graphs can hold it. No model, no scheduler, no fallback to PyTorch enters here.
"""

from __future__ import annotations

import os
from functools import lru_cache

import torch
from torch import Tensor


def takes(x: Tensor) -> bool:
    """Whether kernels run where a tensor lies: on a GPU, or on a CPU under the interpreter.

    They sum in float32, so float64 goes step by step through PyTorch.
    """
    there = x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return there and x.dtype != torch.float64


def dense(x: Tensor | None) -> Tensor | None:
    """What a kernel reads by its place alone, such as a weight or a table of starts."""
    return None if x is None else x.contiguous()


def rows_of(x: Tensor) -> Tensor:
    """[..., D] as [rows, D] with elements of a row side by side; a view wherever one exists.

    A gradient that was expanded lies on itself in steps of 0: its rows may, its elements may not.
    """
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 or rows.shape[1] == 1 else rows.contiguous()


@lru_cache
def num_processors(device: torch.device) -> int:
    """Count streaming multiprocessors; 8 under the interpreter, so that tests split work too."""
    if device.type != "cuda":
        return 8
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache
def shared_bytes(device: torch.device) -> int:
    """Shared memory that one block may have; under the interpreter the least of any GPU's."""
    if device.type != "cuda":
        return 65_536
    known = torch.cuda.get_device_properties(device)
    return int(getattr(known, "shared_memory_per_block_optin", known.shared_memory_per_block))


@lru_cache
def major_capability(device: torch.device) -> int:
    """The first number of the compute capability; 0 under the interpreter."""
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0
