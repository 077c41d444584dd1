"""What launches need to know of the device, on the host."""

from __future__ import annotations

from functools import lru_cache

import torch


@lru_cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors; 8 under the interpreter, so that tests split work as well."""
    if device.type != "cuda":
        return 8
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
