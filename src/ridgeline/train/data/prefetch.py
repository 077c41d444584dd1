"""Copy the next step's batches to the device while this step computes.

On CUDA: from pinned memory, on a stream of its own; the step waits for the copy on the device, not
on the host. Elsewhere batches pass through: they are where they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def to_device(steps: Iterator[Tensor], device: torch.device) -> Iterator[Tensor]:
    """The same steps on the device, one copied ahead."""
    if device.type != "cuda":
        return steps
    return _on_stream(steps, device)


def _on_stream(steps: Iterator[Tensor], device: torch.device) -> Iterator[Tensor]:
    stream = torch.cuda.Stream(device)

    def copy() -> Tensor:
        rows = next(steps).pin_memory()
        with torch.cuda.stream(stream):
            return rows.to(device, non_blocking=True)

    ahead = copy()
    while True:
        current = torch.cuda.current_stream(device)
        current.wait_stream(stream)
        # The allocator may hand this memory out again only when the step has used it.
        ahead.record_stream(current)
        ready, ahead = ahead, copy()
        yield ready
