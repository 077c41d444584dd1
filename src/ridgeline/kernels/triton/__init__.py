"""GPU kernels in Triton, behind the wrappers of `kernels/`.

`paged_attention.py` stores keys and values and attends over them, `linear_int8.py` and
`linear_int4.py` multiply with weights that stay small in memory. The Triton interpreter runs all of
them on the CPU in tests (`TRITON_INTERPRET=1`), and tests compile them for sm_80 and sm_90.

Nothing here waits for the device: whatever decides about a launch is known on the host, so that
CUDA graphs can hold it. No model, no scheduler, no fallback to PyTorch enters here.
"""

from __future__ import annotations

from functools import lru_cache

import torch


@lru_cache
def num_processors(device: torch.device) -> int:
    """Count streaming multiprocessors; 8 under the interpreter, so that tests split work too."""
    if device.type != "cuda":
        return 8
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
