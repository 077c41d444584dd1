"""Gradients in 16 bits, summed in 16 bits: what `schemes/fp16.py` and `schemes/bf16.py` share."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ridgeline.train.compression.bucket import Bucket
from ridgeline.train.compression.counted import Counted


class Cast:
    """A `Scheme` without memory."""

    def __init__(self, dtype: torch.dtype, counted: Counted) -> None:
        self._dtype = dtype
        self._counted = counted

    def reduce(self, bucket: Bucket) -> None:
        """See `Scheme`."""
        sent = bucket.buffer.to(self._dtype).div_(self._counted.size)
        self._counted.all_reduce(sent)
        bucket.buffer.copy_(sent)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """See `Scheme`."""
        return {}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """See `Scheme`."""
